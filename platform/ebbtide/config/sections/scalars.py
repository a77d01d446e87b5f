"""The kinds of single values that several sections share: names, sizes in bytes, seconds, paths."""

import re
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

BASE_DIR = "base_dir"
"""Key of the validation context under which ``load`` gives the directory of the file."""

SIZE_TEXT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*$")
SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_size(value: object) -> object:
    """``"8 GiB"`` as a number of bytes; anything that is no text passes through.

    Raises:
        PydanticCustomError: text that is no size.
    """
    if not isinstance(value, str):
        return value
    match = SIZE_TEXT.match(value)
    if match is None or float(match[1]) * SIZE_UNITS[match[2] or ""] > 2**62:
        raise PydanticCustomError("size", 'expected a number of bytes or a size such as "8 GiB" or "64 MiB"')
    return int(float(match[1]) * SIZE_UNITS[match[2] or ""])


def _no_empty_text(value: object) -> object:
    if value == "":  # Path("") is ".", which nobody means who writes nothing
        raise PydanticCustomError("path", "expected a path")
    return value


def _from_file(path: Path, info: ValidationInfo) -> Path:
    base_dir = info.context.get(BASE_DIR) if isinstance(info.context, dict) else None
    if "\0" in str(path):
        raise PydanticCustomError("path", "expected a path")
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("path", "there is no such home directory") from error
    return path if base_dir is None else Path(normpath(Path(base_dir) / path))


_STORED_MODEL = re.compile(r"[A-Za-z0-9_][\w.+=,@/-]*:[A-Za-z0-9_][\w.+=,@-]*", re.ASCII)


def is_stored_model(model: Path) -> bool:
    """Whether a model is a name of the pool's store (``org/model:tag``) and not a directory.

    The colon tells: a directory that has one is written with ``./`` or ``/`` before it.
    """
    return not model.is_absolute() and _STORED_MODEL.fullmatch(str(model)) is not None


HUB = "hf://"
_HUB_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[\w-])?"  # the hub's names have at most 96 characters
BARE_HUB_ID = re.compile(rf"{_HUB_PART}/{_HUB_PART}", re.ASCII)
_HUB_ID = re.compile(rf"{HUB}({BARE_HUB_ID.pattern})(?:@({_HUB_PART}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """A model on the Hugging Face hub, and what it is called in the pool's store."""

    name: str
    revision: str = ""

    @property
    def url(self) -> str:
        """Where it is imported from."""
        return f"{HUB}{self.name}{f'@{self.revision}' if self.revision else ''}"

    @property
    def tag(self) -> str:
        """Of its name in the store."""
        return self.revision or "latest"

    @property
    def stored(self) -> str:
        """``name:tag`` in the store."""
        return f"{self.name}:{self.tag}"


def hub_id(text: str) -> HubId | None:
    """``hf://org/name`` or ``hf://org/name@revision``; None for anything else."""
    found = _HUB_ID.fullmatch(text)
    return HubId(found[1], found[2] or "") if found else None


def _text_of_model(value: object, info: ValidationInfo) -> object:
    base_dir = info.context.get(BASE_DIR) if isinstance(info.context, dict) else None
    if isinstance(value, str) and value.startswith("./") and base_dir is not None:
        return normpath(Path(base_dir) / value)  # here, since a Path does not remember the "./"
    if isinstance(value, str) and (found := hub_id(value)) is not None:
        return found.stored
    if isinstance(value, str) and value.startswith(HUB):
        raise PydanticCustomError("model", "expected hf://org/name, or hf://org/name@revision")
    if isinstance(value, str) and "://" in value:
        raise PydanticCustomError(
            "model", "expected a directory or a name in the pool's store; bring it in first: ebbtide models import URL"
        )
    return value


def _model(path: Path, info: ValidationInfo) -> Path:
    return path if is_stored_model(path) else _from_file(path, info)


Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A name that is safe in a path, a URL, a Ray actor name and a metric label."""

SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string", "pattern": SIZE_TEXT.pattern}]}
    ),
]
"""Bytes, as a number or as text with a unit."""

RelativePath = Annotated[Path, BeforeValidator(_no_empty_text), AfterValidator(_from_file)]
"""A path of this machine; a relative one is taken from the directory of the file it stands in."""

ModelPlace = Annotated[Path, BeforeValidator(_no_empty_text), BeforeValidator(_text_of_model), AfterValidator(_model)]
"""A directory, taken like `RelativePath`, or ``name:tag`` or ``hf://org/name`` of a model in the pool's store."""

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]  # a year: more is a slip of units
SecondsOrZero = Annotated[float, Field(ge=0, le=31_536_000)]
Count = Annotated[int, Field(ge=1, le=2**53)]  # 2^53: every reader of JSON holds it exactly
CountOrZero = Annotated[int, Field(ge=0, le=2**53)]
