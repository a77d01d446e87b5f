"""Types of vLLM's arguments from the text that facts have of them, and whether a value is of a type.

vLLM's configuration classes are pydantic's, so pydantic judges here too, and as leniently: ``8`` is a number with a
point, ``"8"`` a whole one. What a text names beyond plain types (a class of vLLM's, a type that was cut short) takes
every value: only vLLM itself can judge that.
"""

import ast
import re
from functools import cache
from types import NoneType
from typing import Any, Literal, Optional, Union, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from ebbtide_serve.vllm_versions.facts import CUT

PLAIN: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "None": NoneType, "NoneType": NoneType}
COLLECTIONS: dict[str, Any] = {"list": list, "set": set, "dict": dict, "tuple": tuple}
WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "set": "a list",
    "tuple": "a list",
    "dict": "a mapping (key: value)",
    "None": "null",
    "NoneType": "null",
}
MOST_CHOICES = 20  # in one message
MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Of ``human_readable_int`` in vLLM's ``utils/argparse_utils.py``: its command line takes these, its classes do not."""


def takes(text: str, value: object) -> bool:
    """Whether a value is of the type that ``text`` names; True where that cannot be judged."""
    try:
        _adapter(text).validate_python(value)
    except ValidationError:
        return False
    return True


def expected(text: str) -> str:
    """The type in a user's words; that it may be null as well is not said."""
    tree = _tree(text)
    words = ["text"] if tree is None else list(dict.fromkeys(_words(tree)))
    return " or ".join([word for word in words if word != "null"] or words)


def choices(text: str) -> list[str]:
    """The words that a type names one by one."""
    tree = _tree(text)
    nodes = ast.walk(tree) if tree is not None else ()
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def number_meant(value: object) -> int | None:
    """The whole number that ``8k`` means on vLLM's command line; None: it is no such word."""
    found = re.fullmatch(r"(\d+)([kKmMgGtT])", value) if isinstance(value, str) else None
    return None if found is None else int(found[1]) * MULTIPLES[found[2]]


def named(text: str) -> set[str]:
    """All names in a type's text."""
    tree = _tree(text)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree is not None else set()


@cache
def _adapter(text: str) -> TypeAdapter[Any]:
    tree = _tree(text)
    # A list of words that was cut is still one of words.
    cut = str if text.startswith("Literal['") else Any
    kind = cut if tree is None else _kind(tree)
    try:
        return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, TypeError):  # a form that no version had so far
        return TypeAdapter(Any)


def _tree(text: str) -> ast.expr | None:
    """None: it is no whole type."""
    if text.endswith(CUT):
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _kind(node: ast.expr) -> Any:
    """A type as ``typing`` has it."""
    match node:
        case ast.Constant(value=None):
            return NoneType
        case ast.Name(id=name):
            return PLAIN.get(name) or COLLECTIONS.get(name) or Any
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return Union[_kind(left), _kind(right)]  # noqa: UP007 - made of values
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner])
    return Any


def _generic(name: str, inner: list[ast.expr]) -> Any:
    if name == "Literal":
        values = tuple(node.value for node in inner if isinstance(node, ast.Constant))
        return Literal[values] if len(values) == len(inner) else Any
    if name == "Annotated":
        return _kind(inner[0])
    kinds = [... if isinstance(node, ast.Constant) and node.value is ... else _kind(node) for node in inner]
    if name == "Optional":
        return Optional[kinds[0]]  # noqa: UP045 - made of values
    if name == "Union":
        return Union[tuple(kinds)]  # noqa: UP007 - made of values
    base = COLLECTIONS.get(name)
    return Any if base is None else base[tuple(kinds)]


def _words(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=None):
            return ["null"]
        case ast.Name(id=name):
            return [WORDS.get(name, name)]
        case ast.BinOp(left=left, right=right):
            return [*_words(left), *_words(right)]
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if name == "Literal":
                return [_one_of([cast(ast.Constant, part).value for part in parts])]
            if name == "Union":
                return [word for part in parts for word in _words(part)]
            if name == "Optional":
                return [*_words(parts[0]), "null"]
            return _words(parts[0]) if name == "Annotated" else [_collection(name, parts)]
    return ["what vLLM takes there"]


def _one_of(values: list[Any]) -> str:
    shown = [str(value) for value in values[:MOST_CHOICES]]
    return f"one of {', '.join(shown)}{' and others' if len(values) > MOST_CHOICES else ''}"


def _collection(name: str, parts: list[ast.expr]) -> str:
    """Such as "a list of whole numbers", where the items are plain."""
    plural = {"int": "whole numbers", "float": "numbers", "str": "texts"}
    inner = parts[0].id if len(parts) == 1 and isinstance(parts[0], ast.Name) else ""
    word = WORDS.get(name, name)
    return f"{word} of {plural[inner]}" if inner in plural and name in ("list", "set") else word
