"""Which processes use the GPUs of a `FakeDriver`: those that have a file of a certain folder open.

A real driver knows a process by the devices that it has open, and keeps where it stands in that process's own memory.
So here: the file stands for the open device, and its name for that memory. It comes back with an image of the process,
under the old pid with another start time; a process without one is a stranger to the driver.

Without the folder every process uses CUDA, and is known by its start time.
"""

import os
from contextlib import suppress
from pathlib import Path


def users_of(state_file: Path) -> Path:
    """The folder of the fake driver with this state file. Each user has a file of its own in it open, of any name."""
    return state_file.with_name(state_file.name + ".users")


def held_by(pid: int, folder: Path) -> str | None:
    """The name of the file in ``folder`` that a process has open; None: it has none, or is gone."""
    prefix = f"{folder.resolve()}{os.sep}"
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith(prefix):
                    return target.removeprefix(prefix)
    return None
