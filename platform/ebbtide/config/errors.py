"""What can be wrong with a configuration.

::

    ValueError
    ├── ConfigErrors        a file cannot be used; carries every problem found in it
    └── SecretUnavailable   the file is fine, but the secret that a key refers to cannot be read

Texts never repeat the value of a secret: they name keys and positions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One thing that is wrong, at one place of one file."""

    file: Path
    line: int  # from 1
    column: int  # from 1
    path: str  # as a person would write it: "endpoints[0].replicas.max"; empty for the file as a whole
    message: str
    hint: str | None = None  # what was probably meant
    scope: Literal["file", "machine"] = "file"  # machine: the same file may be right on another one

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: " + ("on this machine: " if self.scope == "machine" else "")
        what = f"{self.path}: {self.message}" if self.path else self.message
        return where + what + (f" ({self.hint})" if self.hint else "")

    def as_json(self) -> dict[str, object]:
        """The same as a JSON object."""
        return {
            "file": str(self.file),
            "line": self.line,
            "column": self.column,
            "path": self.path,
            "message": self.message,
            "hint": self.hint,
            "scope": self.scope,
        }


def ordered(problems: Iterable[ConfigProblem]) -> tuple[ConfigProblem, ...]:
    """Each once, by its position."""
    return tuple(sorted(set(problems), key=lambda p: (str(p.file), p.line, p.column, p.path, p.message)))


class ConfigErrors(ValueError):
    """A file cannot be used. ``problems`` holds all that is wrong with it, by position; it is never empty."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = ordered(problems)
        assert self.problems, "no problems, no error"
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SecretUnavailable(ValueError):
    """A secret's file or environment variable is missing, empty or too short."""
