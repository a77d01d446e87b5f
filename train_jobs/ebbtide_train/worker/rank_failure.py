"""A rank's failure as plain text, numbers and type names: what its controller judges it by.

The exception itself stays in its process. Some cannot be pickled, and most of those that count are torch's, which the
controller does not import.
"""

import sys
import sysconfig
import traceback
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import ebbtide

MESSAGE_CHARS = 300  # of a line that a status shows
CAUSES = 3  # of an exception that was raised from another: libraries wrap once or twice
_TRACEBACK = "Traceback (most recent call last)"
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_TRAIN = Path(__file__).resolve().parents[1]  # this package; to import its top would be to import torch
_OURS = (str(Path(ebbtide.__file__ or "").resolve().parent), str(_TRAIN))
_EXAMPLES = str(_TRAIN / "examples")  # their author is a user like others


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception.

    Attributes:
        types: its class and the classes that this extends, as ``module.name``; of builtins the name alone.
        message: one line, ``MESSAGE_CHARS`` at most.
        place: the innermost line of the author's code, as ``file.py:12``; "" where there is none.
        errno: the operating system's number, if it has one.
    """

    types: tuple[str, ...]
    message: str
    place: str = ""
    errno: int | None = None

    @property
    def line(self) -> str:
        """Type, message and place in one line, as Python ends a traceback."""
        said = self.types[0].rpartition(".")[2] + (f": {self.message}" if self.message else "")
        return f"{said} ({self.place})" if self.place else said


class RankFailed(Exception):
    """What a rank raises to its controller in the place of what happened to it.

    Attributes:
        chain: what was raised, and after it what that was explicitly raised from.
        step: finished steps of the job then.
        steps_here: those of them that this gang has finished.
    """

    def __init__(self, chain: tuple[Raised, ...], step: int = 0, steps_here: int = 0) -> None:
        super().__init__(chain, step, steps_here)
        self.chain, self.step, self.steps_here = chain, step, steps_here

    @property
    def raised(self) -> Raised:
        """The exception that ended the rank."""
        return self.chain[0]

    def __str__(self) -> str:
        return self.raised.line


def as_told(error: BaseException, *, step: int = 0, steps_here: int = 0) -> RankFailed:
    """``error`` in a form that every process can read."""
    chain, now = [_raised(error)], error.__cause__
    while now is not None and len(chain) <= CAUSES:
        chain.append(_raised(now))
        now = now.__cause__
    return RankFailed(tuple(chain), step, steps_here)


def _raised(error: BaseException) -> Raised:
    number = getattr(error, "errno", None)
    return Raised(
        types=tuple(_name(kind) for kind in type(error).__mro__ if kind is not object),
        message=one_line(error),
        place=_place(error),
        errno=number if type(number) is int else None,
    )


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def one_line(error: BaseException) -> str:
    """The line of an exception's text that says the most; its text may fail to be made."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as failed:  # noqa: BLE001 the author wrote __str__, and it may raise anything
        text = f"(its text cannot be made: {type(failed).__name__})"
    lines = [line.strip() for line in str(text).splitlines() if line.strip()] or [""]
    # One that was raised in another process carries that one's traceback, which ends with what happened.
    return (lines[-1] if any(_TRACEBACK in line for line in lines) else lines[0])[:MESSAGE_CHARS]


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    return place_in(error.__traceback__)


def place_in(trace: TracebackType | None) -> str:
    """The innermost line of the author's own code in a traceback, as ``file.py:12``; "" where there is none."""
    for frame in reversed(traceback.extract_tb(trace)):
        if is_authors(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def place_of_thread(ident: int) -> str:
    """Where a thread stands in the author's code now, as ``file.py:12``; "" where it is nowhere in it."""
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if is_authors(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def authors_part(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` from the author's outermost line on; all of it where there is none."""
    now = trace
    while now is not None and not is_authors(now.tb_frame.f_code.co_filename):
        now = now.tb_next
    return now or trace


@lru_cache(maxsize=1024)
def is_authors(filename: str) -> bool:
    """Whether that file is neither a library's, nor Python's, nor ours."""
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    if path.startswith(_EXAMPLES):
        return True
    return not path.startswith((*_LIBRARIES, *_OURS)) and "site-packages" not in path
