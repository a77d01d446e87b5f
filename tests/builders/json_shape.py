"""The shape of what commands print with ``--json``: one schema per command, and rules for all."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema

from ebbtide.cli.terminal import output

SCHEMA = Path(__file__).parents[2] / "docs" / "json.schema.json"
MASS_NOUNS = ("damage", "rehearsal")  # names of lists that have no plural
ROOTS = ("cli", "ebbtide")


@cache
def schema() -> dict[str, Any]:
    """All of it."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text())
    return found


def check(name: str, value: Any) -> None:
    """Raise unless ``value`` is what the command ``name``, or the definition, promises."""
    promised = schema()["properties"].get(name) or schema()["$defs"][name]
    plain = json.loads(json.dumps(value, default=str))
    jsonschema.validate(plain, {**promised, "$defs": schema()["$defs"]})
    if name in ("env", "schema"):  # the names in there are others'
        return
    for key, part in plain.items():
        assert not isinstance(part, list) or key.endswith("s") or key in MASS_NOUNS, f"{name}: {key} is no plural"
    check_times(plain, name)


def check_times(value: Any, where: str) -> None:
    """Each ``*_at`` is ISO 8601 in UTC and has its seconds beside it; each other ``*_s`` is a duration."""
    if isinstance(value, list):
        for part in value:
            check_times(part, where)
    if not isinstance(value, dict):
        return
    for key, part in value.items():
        place = f"{where}.{key}"
        if key == "body":  # of a record: as the ledger has it
            continue
        if key.endswith("_at_s") or key == "at_s":
            told, seconds = value[key.removesuffix("_s")], part
            assert (told is None) == (not seconds), place
            if told is not None:
                assert abs(datetime.fromisoformat(told).timestamp() - seconds) < 0.002, place
        elif key.endswith("_at") or key == "at":
            assert f"{key}_s" in value, place
        elif key.endswith("_s") and not key.endswith("_per_s"):
            assert part is None or isinstance(part, int | float), place
            assert not part or abs(part) < 1e9, f"{place} is a time, no duration"
        else:
            check_times(part, place)


def command_of(ctx: click.Context) -> str:
    """Its name below ``ebbtide``."""
    words = ctx.command_path.split()
    return " ".join(words[1:] if words[0] in ROOTS else words)


@contextmanager
def checked_json() -> Iterator[None]:
    """All that commands print as JSON is checked, for as long as this lasts."""
    plain = output.document

    def checked(value: Mapping[str, Any]) -> dict[str, Any]:
        found = plain(value)
        ctx = click.get_current_context(silent=True)
        if ctx is not None and (name := command_of(ctx)) in schema()["properties"]:
            check(name, found)
        return found

    output.document = checked
    try:
        yield
    finally:
        output.document = plain
