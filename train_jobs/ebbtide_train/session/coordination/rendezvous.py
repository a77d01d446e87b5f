"""Where the ranks of a gang find each other: a folder of small files, all of one submission of the job.

On the node itself where all ranks are on one, so that a full, read-only or hanging shared directory keeps no gang from
coming back; else on the shared directory. Files of earlier gangs and submissions are removed when a gang starts.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from ebbtide_train.session.settings import SessionSettings

_FILE = re.compile(r"(?:word-|off-)?(\d+)-\d+(?:-\d+)?(?:\.json)?")


def folder_of(settings: SessionSettings) -> Path:
    """The folder, which need not exist."""
    return (settings.meeting_root or settings.run_dir / "rendezvous").absolute() / settings.incarnation


def sweep(settings: SessionSettings) -> None:
    """Remove what earlier gangs have left; for rank 0, before the ranks meet."""
    mine = folder_of(settings)
    with suppress(OSError):
        for other in mine.parent.iterdir():
            if other != mine:
                shutil.rmtree(other, ignore_errors=True)
        for path in mine.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is not None and int(match[1]) < settings.lease.epoch:
                path.unlink(missing_ok=True)
