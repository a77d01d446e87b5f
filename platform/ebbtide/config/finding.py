"""A problem at a place of the file that is named by keys and indexes; the loader turns it into a line and column."""

from dataclasses import dataclass

Loc = tuple[str | int, ...]
"""The way from the top of the file to a value: keys of mappings, indexes of lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where."""

    loc: Loc
    message: str
    hint: str | None = None  # what was probably meant
    at_key: bool = False  # the key is wrong, not its value


def text_path(loc: Loc) -> str:
    """A place as a person would write it: ``jobs[0].workers.max``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
