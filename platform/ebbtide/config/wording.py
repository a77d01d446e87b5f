"""Says in a user's words what pydantic found: what was expected, what stands there, what was probably meant."""

import re
from collections.abc import Iterator
from functools import cache
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.nearest import did_you_mean
from ebbtide.config.root import PoolFile

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of sensible size",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
}
INLINE_SECRET = "a secret is never written inline: write {file: PATH}, {env: NAME} or {sha256: HEX}"
KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
PATTERNS = {
    "name": "a name starts with a small letter or digit and has at most 63 small letters, digits, '.', '_', '-'",
    "entrypoint": 'expected "module:function", such as "my_package.train:main"',
    "env": "expected the name of an environment variable",
    "sha256": "expected 64 small hex digits; a secret itself is never written inline",
}
"""What a text must look like, by the field whose pattern it missed."""


def finding(error: ErrorDetails) -> Finding:
    """One pydantic error, put into words."""
    kind, loc = error["type"], error["loc"]
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    if kind == "missing":
        field = model_at(loc[:-1])
        description = field.model_fields[_field_name(field, str(loc[-1]))].description if field else ""
        return Finding(loc, f"{loc[-1]!r} is required: {description}")
    if kind in EXPECTED and loc[-1:] == ("secret",) and isinstance(error["input"], str):
        return Finding(loc, INLINE_SECRET)
    if kind in EXPECTED:
        got = "nothing" if error["input"] is None else KINDS.get(type(error["input"]), "something else")
        return Finding(loc, f"expected {EXPECTED[kind]}, got {got}", _quoting(kind, error["input"]))
    if kind == "string_pattern_mismatch" and loc and loc[-1] in PATTERNS:
        return Finding(loc, PATTERNS[str(loc[-1])])
    if kind in ("enum", "literal_error"):
        expected = error["ctx"]["expected"]
        hint = (
            did_you_mean(error["input"], re.findall(r"'([^']*)'", expected))
            if isinstance(error["input"], str)
            else None
        )
        return Finding(loc, f"expected {expected}", hint)
    message = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return Finding(loc, f"must be {message}" if error["msg"].startswith("Input should be ") else message)


def model_at(loc: Loc) -> type[BaseModel] | None:
    """The model of the section at ``loc``, or None where the file is free (engine arguments, job arguments)."""
    model: type[BaseModel] | None = PoolFile
    for part in loc:
        if isinstance(part, int):
            continue
        fields = {} if model is None else model.model_fields
        found = [field for name, field in fields.items() if part in (name, field.alias)]
        model = next(_models(found[0].annotation), None) if found else None
    return model


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys of a section, as they are written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _field_name(model: type[BaseModel], key: str) -> str:
    return next(name for name, field in model.model_fields.items() if key in (name, field.alias))


def _unknown_key(loc: Loc) -> Finding:
    word, model = str(loc[-1]), model_at(loc[:-1])
    known = known_keys(model) if model else []
    hint = did_you_mean(word, known)
    if hint is None and word in _homes():
        hint = f"it belongs in {_homes()[word]}"
    return Finding(loc, f"unknown key {word!r}", hint or f"known here: {', '.join(known)}", at_key=True)


def _quoting(kind: str, value: object) -> str | None:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return "leave out the quotes"
    return None


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


@cache
def _homes() -> dict[str, str]:
    """For every key that stands in one section only, that section: the user may have put it one level off."""
    homes: dict[str, set[str]] = {}

    def walk(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            homes.setdefault(field.alias or name, set()).add(path or "the top level")
            for inner in _models(field.annotation):
                walk(inner, f"{path}.{name}".lstrip("."))

    walk(PoolFile, "")
    return {key: next(iter(paths)) for key, paths in homes.items() if len(paths) == 1}
