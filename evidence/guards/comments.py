"""Finds the guards of a source file: its comments ``# guard: NAME``.

The comment stands on the line of the condition, or alone on the line above. Two names for one condition are divided by
``;``. A name is a sentence without a period, unique in the whole source.
"""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart")
PREFIX = "# guard: "


@dataclass(frozen=True, slots=True)
class Guard:
    """A named condition.

    Attributes:
        file: from the top of the repository.
        line: of the condition; it counts from 1.
    """

    name: str
    file: str
    line: int


def guards_of(root: Path) -> list[Guard]:
    """All guards of the product, in the order of their files and lines."""
    return [
        guard
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        for guard in guards_in(path.read_text(), str(path.relative_to(root)))
    ]


def guards_in(source: str, file: str) -> Iterator[Guard]:
    """The guards of one file."""
    if PREFIX not in source:
        return
    waiting: list[str] = []  # of comments that stand alone, until the next line of code
    last_line = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT and token.string.startswith(PREFIX):
            names = [name.strip() for name in token.string.removeprefix(PREFIX).split(";")]
            if token.line[: token.start[1]].strip():
                yield from (Guard(name, file, line) for name in names)
            else:
                waiting += names
        elif token.type not in _NO_CODE and line != last_line:
            yield from (Guard(name, file, line) for name in waiting)
            waiting, last_line = [], line


_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
