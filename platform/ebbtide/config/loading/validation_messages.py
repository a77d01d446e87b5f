"""Says in a user's words what pydantic found: what was expected, what stands there, what was probably meant."""

import re
from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.suggestions import did_you_mean

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
    "at": 'expected a time of day, such as "09:00" or "18:30"',
    "engine_class": 'expected "module:Class", such as "my_package.engine:Engine"',
    "sender": 'expected a mail address, such as "ebbtide@example.org"',
    "webhook": 'expected an address such as "https://chat.example.org/hook"',
    "sha256": "expected 64 small hex digits; a secret itself is never written inline",
}
"""What a text must look like, by the field whose pattern it missed."""


def findings(error: ValidationError, root: type[BaseModel] = PoolFile) -> list[Finding]:
    """All that is wrong, in words; ``root`` is the model of the whole file."""
    details = error.errors(include_url=False)
    wrong_within = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    # Pydantic counts only the items that are right: of a list whose one item is wrong it says that it has none, too.
    real = [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in wrong_within]
    found = [_finding(one, root) for one in real]
    # A key that is misspelt is one mistake, even if the key that was meant is required.
    guessed = {(*one.loc[:-1], one.hint) for one in found if one.at_key}
    return [one for one in found if not one.loc or (*one.loc[:-1], f"did you mean {one.loc[-1]!r}?") not in guessed]


def _finding(error: ErrorDetails, root: type[BaseModel]) -> Finding:
    kind, loc = error["type"], error["loc"]
    if kind == "extra_forbidden":
        return _unknown_key(loc, root)
    if kind == "missing":
        field = model_at(loc[:-1], root)
        description = field.model_fields[_field_name(field, str(loc[-1]))].description if field else None
        return Finding(loc, f"{loc[-1]!r} is required" + (f": {description}" if description else ""))
    if kind in EXPECTED and loc[-1:] == ("secret",) and isinstance(error["input"], str):
        return Finding(loc, INLINE_SECRET)
    if kind in EXPECTED:
        return Finding(loc, f"expected {EXPECTED[kind]}, got {_kind(error['input'])}", _quoting(kind, error["input"]))
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


def model_at(loc: Loc, root: type[BaseModel] = PoolFile) -> type[BaseModel] | None:
    """The model of the section at ``loc``, or None where the file is free (engine arguments, job arguments)."""
    model: type[BaseModel] | None = root
    named = False  # sections by a name of the user's, which is the next part
    for part in loc:
        if isinstance(part, int):
            continue
        if named:
            named = False
            continue
        fields = {} if model is None else model.model_fields
        found = [field for name, field in fields.items() if part in (name, field.alias)]
        model = next(_models(found[0].annotation), None) if found else None
        named = model is not None and get_origin(found[0].annotation) is dict
    return model


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys of a section, as they are written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _field_name(model: type[BaseModel], key: str) -> str:
    return next(name for name, field in model.model_fields.items() if key in (name, field.alias))


def _unknown_key(loc: Loc, root: type[BaseModel]) -> Finding:
    word, model = str(loc[-1]), model_at(loc[:-1], root)
    known = known_keys(model) if model else []
    hint = did_you_mean(word, known)
    if hint is None and word in _homes(root):
        hint = f"it belongs in {_homes(root)[word]}"
    return Finding(loc, f"unknown key {word!r}", hint or f"known here: {', '.join(known)}", at_key=True)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return KINDS.get(type(value), "something else")


def _quoting(kind: str, value: object) -> str | None:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return "leave out the quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        amount = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*[A-Za-z%]+\s*", value)
        return f"write {amount[1]}, without a unit" if amount else None
    return None


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


@cache
def _homes(root: type[BaseModel]) -> dict[str, str]:
    """For every key that stands in one section only, that section: the user may have put it one level off."""
    homes: dict[str, set[str]] = {}

    def walk(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            homes.setdefault(field.alias or name, set()).add(path or "the top level")
            for inner in _models(field.annotation):
                walk(inner, f"{path}.{name}".lstrip("."))

    walk(root, "")
    return {key: next(iter(paths)) for key, paths in homes.items() if len(paths) == 1}
