"""``about.json``: what the writer of a checkpoint wanted to say about it, in a few hundred bytes.

A controller that asks how far a job is safe reads only this; it needs no torch and none of the state.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ebbtide.storage.errors import Corrupt, Refused

Note: TypeAlias = Mapping[str, "str | int | float | bool | None"]

SCHEMA = 1
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """What is said about a checkpoint.

    Attributes:
        ranks: how many wrote it.
        note: the writer's own: seed, batch size, samples seen.
    """

    ranks: int
    note: Note

    def to_bytes(self) -> bytes:
        """The content of the file.

        Raises:
            Refused: the note is no plain table, or too long.
        """
        for key, value in self.note.items():
            if type(key) is not str or type(value) not in (str, int, float, bool, type(None)):
                raise Refused(f"a note cannot say {key!r}: {value!r}; texts, numbers and truth values are expected")
        try:
            raw = json.dumps({"schema": SCHEMA, "ranks": self.ranks, "note": dict(self.note)}, allow_nan=False).encode()
        except ValueError as error:
            raise Refused(f"a note cannot be written: {error}") from error
        if len(raw) >= MAX_BYTES:
            raise Refused(f"a note of {len(raw)} bytes is too long: at most {MAX_BYTES}; put it into the state")
        return raw + b"\n"


def parse_about(raw: bytes, path: Path) -> About:
    """Read it.

    Raises:
        Corrupt: it makes no sense.
        Refused: a newer version wrote it.
    """
    try:
        fields = json.loads(raw)
        schema, ranks, note = fields["schema"], fields["ranks"], fields["note"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"this says nothing about a checkpoint: {error}", path) from error
    if schema != SCHEMA:
        raise Refused(f"{path} has schema {schema!r}; this version of ebbtide reads {SCHEMA}: update it")
    if type(ranks) is not int or not isinstance(note, dict):
        raise Corrupt("this says nothing about a checkpoint: ranks or note is no such thing", path)
    return About(ranks, note)
