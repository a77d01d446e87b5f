"""Whether a job of the pool is a session, and who leads its process tree: from its folder on the shared directory.

To the pool's books a session is a job of one rank; that rank is a keeper and not the tree that is parked. The files are
those of ``interactive.image_place``.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.doctor.deadline import NoAnswer, within

LOOK_S = 5.0  # a filesystem answers in milliseconds, or it hangs


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A session; ``leader`` is the first process of its tree, 0 while it has none."""

    leader: int


def session_tree(shared_dir: str, job: str, *, look_s: float = LOOK_S) -> SessionTree | None:
    """None: that job is no session.

    Raises:
        OSError: the shared directory does not answer, or the session's files are damaged.
    """
    folder = Path(shared_dir) / "train" / job / "session"
    try:
        return within(look_s, lambda: _read(folder))
    except NoAnswer as error:
        raise OSError(f"the shared directory {shared_dir} does not answer within {look_s:g} s") from error


def _read(folder: Path) -> SessionTree | None:
    if not folder.is_dir():
        return None
    try:
        found = json.loads((folder / "leader.json").read_text())
        return SessionTree(int(found["pid"]))
    except FileNotFoundError:
        return SessionTree(0)
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{folder}/leader.json is damaged ({error})") from error
