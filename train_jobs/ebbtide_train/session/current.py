"""The session of this process: set by whoever runs a train function, read by its author.

One process is one rank, so there is one session at a time; this module imports no torch, so that it is cheap to import.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ebbtide_train.session.errors import SessionMisuse

if TYPE_CHECKING:
    from ebbtide_train.session.session import TrainingSession

_active: list["TrainingSession"] = []


def current_session() -> "TrainingSession":
    """The session that this train function runs under.

    Raises:
        SessionMisuse: nobody activated one: the function was called by hand.
    """
    if not _active:
        raise SessionMisuse(
            "there is no session in this process: run the train function through PoolTrainer, "
            "or wrap the call in `with ebbtide_train.session.current.activate(session):`"
        )
    _active[-1].asked_for()
    return _active[-1]


@contextmanager
def activate(session: "TrainingSession") -> Iterator["TrainingSession"]:
    """Open ``session``, make it current, and close it when the train function has returned or raised.

    Raises:
        Leaving: the gang left by order; also when the train function swallowed that.
    """
    if _active:
        raise SessionMisuse("this process already has a session: one process is one rank")
    _active.append(session)
    try:
        session.open()
        yield session
    except BaseException:
        session.close(returned=False)
        raise
    else:
        session.close(returned=True)
    finally:
        _active.clear()
