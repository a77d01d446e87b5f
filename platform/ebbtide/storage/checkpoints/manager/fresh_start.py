"""A run begins anew, at step 0, and nothing that it has is lost: its directory gets another name.

``train/<run>`` becomes ``train/<run>@<UTC time>`` by one rename. There its checkpoints are listed, verified and
exported like those of any run (``ebbtide checkpoints list <run>@<time>``); no gang writes there, or removes anything.
"""

import os
import time
from itertools import count
from pathlib import Path

from ebbtide.storage.checkpoints.manager.resume_decision import runs
from ebbtide.storage.checkpoints.run_directory.run_paths import ASIDE, RunPaths
from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import Disk, telling


def set_aside(paths: RunPaths, *, now_s: float, disk: Disk | None = None) -> Path | None:
    """Put all of a run aside; where it is then, or None if there was nothing.

    Watches for up to a minute whether a gang lives, if one has died lately.

    Args:
        paths: of the run.
        now_s: since 1970; the new name has it.
        disk: makes the change.

    Raises:
        Refused: a gang of the run lives.
        StorageError: it could not be renamed; nothing has changed.
    """
    with telling("look at", paths.directory):
        if not paths.directory.is_dir() or not any(os.scandir(paths.directory)):
            return None
    if runs(paths):  # guard: no run is put aside under a gang that lives
        raise Refused(f"job {paths.run} runs, or is parked: stop it first, and begin anew then")
    stem = f"{paths.run}{ASIDE}{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now_s))}"
    for number in count(1):
        aside = paths.directory.with_name(stem if number == 1 else f"{stem}-{number}")
        with telling("rename", paths.directory):
            if aside.exists():  # guard: no run takes the place of another that was put aside
                continue
            paths.directory.rename(aside)
        (disk or Disk()).sync_directory(aside.parent)
        return aside
    raise AssertionError("there is always another number")
