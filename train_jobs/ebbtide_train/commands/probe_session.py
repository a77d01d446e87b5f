"""Whether a job of the pool is a session, and who leads its process tree: from its folder on the shared directory.

To the pool's books a session is a job of one rank; that rank is a supervisor and not the tree that is parked.
"""

from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide_train.interactive.session_folder import SessionFolder

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
    place = SessionFolder(Path(shared_dir) / "train" / job)
    try:
        return within(look_s, lambda: _read(place))
    except NoAnswer as error:
        raise OSError(f"the shared directory {shared_dir} does not answer within {look_s:g} s") from error


def _read(place: SessionFolder) -> SessionTree | None:
    if not place.folder.is_dir():
        return None
    try:
        found = place.read("leader")
        return SessionTree(0 if found is None else int(found["pid"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{place.folder}/leader.json is damaged ({error})") from error
