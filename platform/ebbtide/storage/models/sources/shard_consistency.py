"""Whether the parts of a checkpoint fit together: index, shards, configuration."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.source import Source, SourceFile, read_all
from ebbtide.storage.names import file_name
from ebbtide.storage.safetensors.file_header import SUFFIX, Header

CONFIG = "config.json"
_SHOWN = 3  # names in one message


def weight_map(source: Source, index: SourceFile) -> dict[str, str]:
    """The file of each tensor, as the index has it; raises Refused for one that makes no sense."""
    where = f"{source.where}/{index.name}"

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"{printable(name)} stands there twice")
            found[name] = value
        return found

    try:
        fields = json.loads(read_all(source, index).decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{where} cannot be read: {error}") from error
    named = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(one, str) for one in named.values()):
        raise Refused(f"{where} has no weight_map that names a file for each tensor")
    return named


def shards_of(
    source: Source, by_name: Mapping[str, SourceFile], index_name: str, named: Mapping[str, str]
) -> list[SourceFile]:
    """The files that the index names; raises Refused unless all of them are there."""
    wanted = sorted(set(named.values()))
    for name in wanted:
        if "/" in name or not name.endswith(SUFFIX):
            raise Refused(f"{source.where}/{index_name} names the file {printable(name)}, which is no shard beside it")
        try:
            file_name(name)
        except Refused as error:
            raise Refused(f"{source.where}/{index_name} names a shard that cannot be used: {error}") from error
    found = {name: by_name[name] for name in wanted if name in by_name}
    hidden = [name for name in wanted if name not in found]
    found |= {file.name: file for file in source.look_for(hidden)} if hidden else {}
    if missing := [name for name in wanted if name not in found]:
        raise Refused(
            f"{source.where} is incomplete: {some(missing)} of {len(wanted)} shards that {index_name} names "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    return [found[name] for name in wanted]


def check_tensors(
    source: Source, headers: Mapping[str, Header], named: Mapping[str, str], index_name: str
) -> list[str]:
    """Compare what the index says with what the headers of the shards say; notes on what is odd but harmless.

    Raises:
        Refused: a tensor stands in two shards, or is not where the index says.
    """

    def refuse(what: str) -> NoReturn:
        raise Refused(f"{source.where}: {what}; its weights do not fit together")

    place: dict[str, str] = {}
    for name, header in headers.items():
        for entry in header.entries:
            if (other := place.setdefault(entry.name, name)) != name:
                refuse(f"tensor {printable(entry.name)} is in {other} and again in {name}")
    if not named:
        return []
    for tensor, name in named.items():
        if (found := place.get(tensor)) != name:
            there = f"it is in {found}" if found else "it is in none of them"
            refuse(f"{index_name} says that tensor {printable(tensor)} is in {name}, but {there}")
    unnamed = [tensor for tensor in place if tensor not in named]
    return [f"{some(unnamed)}: in the shards, though {index_name} does not name them"] if unnamed else []


def check_config(source: Source, small: Sequence[SourceFile]) -> list[str]:
    """Notes on the configuration; raises Refused for one that is no JSON."""
    file = next((one for one in small if one.name == CONFIG), None)
    if file is None:
        return [f"there is no {CONFIG}: engines will not know what model this is"]
    try:
        config = json.loads(read_all(source, file).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{source.where}/{CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise Refused(f"{source.where}/{CONFIG} is no JSON object")
    if "auto_map" in config:
        return [f"{CONFIG} asks for code of its own (auto_map), which is never run: this model may not load"]
    return []


def some(names: Sequence[str]) -> str:
    """A few of them, and how many more."""
    listed = ", ".join(printable(name) for name in names[:_SHOWN])
    return f"{listed} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else listed


def printable(name: str) -> str:
    """Readable and harmless in a terminal, however long and whatever is in it."""
    return ascii(name if len(name) <= 80 else name[:77] + "...")
