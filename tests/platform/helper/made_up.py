"""Images that no CRIU has made, and what asks for them: for tests of the checks around CRIU."""

import os
from pathlib import Path
from typing import Any

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.criu.image import IMAGES, Manifest, Process, hashed_files, seal
from ebbtide.helper.criu.machine_profile import Machine
from ebbtide.helper.criu.needs import Needs
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Tool
from ebbtide.helper.journal.workload_states import Standing
from ebbtide.storage.files.durable_files import Disk
from ebbtide.system.process import boot_id
from tests.platform.helper.trees import Counting

HERE = Machine(criu="4.2", kernel="Linux", cpu_flags=())
FREE_PID = (1 << 22) - 7  # above what pids come to in a test
NO_CRIU = Tool(Criu(Path("/nowhere/criu"), "4.2"), HERE)


def image(folder: Path, **changes: Any) -> Path:
    """A whole image in ``folder``, of a workload "a" of one process that is gone."""
    path = folder / "image"
    path.mkdir(mode=0o700)
    (path / IMAGES).mkdir(mode=0o700)
    (path / IMAGES / "core.img").write_bytes(b"core")
    fields: dict[str, Any] = {
        "operation": "dump-1",
        "name": "a",
        "generation": 1,
        "uid": os.geteuid(),
        "created": "2026-01-01T00:00:00+00:00",
        "boot": boot_id(),
        "processes": (Process(pid=FREE_PID, started=1, name="python"),),
        "own_bytes": 1,
        "image_bytes": 4,
        "machine": HERE,
        "needs": Needs(builds={}, files=(), folders=()),
        "files": hashed_files(path / IMAGES),
        **changes,
    }
    seal(path, Manifest(**fields), Disk())
    return path


def process_of(tree: Counting) -> Process:
    return Process(pid=tree.pid, started=tree.started, name="python")


def entry_of(tree: Counting, standing: Standing = Standing.LIVE, **changes: Any) -> Entry:
    fields: dict[str, Any] = {"name": "a", "pid": tree.pid, "started": tree.started, "boot": boot_id(), "generation": 1}
    return Entry(**{**fields, "uid": os.geteuid(), "standing": standing, **changes})


def criu_that(folder: Path, script: str) -> Tool:
    """A program in CRIU's place; ``$D`` is the folder of the images that it is to write or read."""
    path = folder / "criu"
    path.write_text(f'#!/bin/sh\nfor one; do [ "$last" = -D ] && D=$one; last=$one; done\n{script}\n')
    path.chmod(0o700)
    return Tool(Criu(path, "4.2"), HERE)
