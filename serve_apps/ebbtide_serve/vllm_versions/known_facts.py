"""Which version of vLLM a pool file is checked against, and its facts. Imports nothing of vLLM.

The one that is installed here; the default one where none is, or where the answer must be the same everywhere. Of an
installed version that is not on file they are collected once, by a process of its own, and kept in the user's cache.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ebbtide_serve.vllm_versions.facts import FOLDER, Facts, facts_of
from ebbtide_serve.vllm_versions.supported import DEFAULT, FIRST, LAST, installed_version, minor, why_not

COLLECT_S = 240.0  # it takes 10 s on 2 cores, for vLLM is imported
COLLECT = "ebbtide_serve.vllm_versions.collect"


def default_facts() -> Facts:
    """Of the version that the project installs."""
    facts = _on_file(DEFAULT)
    assert facts is not None, "its file is in the wheel"
    return facts


def all_facts() -> list[Facts]:
    """Of all versions on file, oldest first."""
    numbers = [(FIRST[0], number) for number in range(FIRST[1], LAST[1] + 1)]
    return [facts for number in numbers if (facts := facts_of(number)) is not None]


def facts_here(note: Callable[[str], None]) -> Facts | None:
    """Of the version that is installed here; None if they cannot be had, or engines of it are refused anyway.

    Args:
        note: takes one line where they are not simply read from their file.
    """
    version = installed_version()
    if version is None:
        note(f"no vLLM is installed on this machine: engine arguments are checked against vLLM {DEFAULT}")
        return default_facts()
    if why_not(version):
        return None
    found = _on_file(version) or _cached(version)
    return found if found is not None else _collected(version, note)


def cache_folder(version: str) -> Path:
    """Where the facts of a version that is not on file are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ebbtide" / "vllm_facts" / version


def _on_file(version: str) -> Facts | None:
    number = minor(version)
    return None if number is None else facts_of(number, FOLDER)


def _cached(version: str) -> Facts | None:
    number = minor(version)
    try:
        return None if number is None else facts_of(number, cache_folder(version))
    except (ValueError, OSError):  # half a file, or no permission: it is made again
        return None


def _collected(version: str, note: Callable[[str], None]) -> Facts | None:
    """Have them collected and keep them; None, with a note, if that fails: then vLLM is the first to judge."""
    number = minor(version)
    assert number is not None, "a version within the range"
    note(f"collecting the engine arguments of vLLM {version}, once (about 10 s)")
    with tempfile.TemporaryDirectory(prefix="ebbtide-facts-") as made:
        # -P: the folder that we happen to be in must not become importable.
        command = [sys.executable, "-P", "-m", COLLECT, "--to", made]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COLLECT_S)
            facts = facts_of(number, Path(made)) if done.returncode == 0 else None
            why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            facts, why = None, str(error)
        if facts is None:
            note(f"engine arguments are not checked, for those of vLLM {version} cannot be collected: {why}")
            return None
        try:
            _keep(Path(made), cache_folder(version))
        except OSError as error:
            note(f"they are not kept, and collected again next time: {error}")
    return facts


def _keep(made: Path, folder: Path) -> None:
    """Whole or not at all, also where two do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in made.iterdir():
        copy = folder / f".{file.name}.{os.getpid()}"
        shutil.copyfile(file, copy)
        copy.replace(folder / file.name)
