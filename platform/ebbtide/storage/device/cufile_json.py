"""cuFile's settings file: read with its ``//`` comments, and written anew with the addresses that this node has now.

Why addresses must be written again: RDMA interfaces get theirs from DHCP or a fabric manager, so they change between
boots, while ``rdma_dev_addr_list`` is a fixed list; with a stale list cuFile falls back to copies through the CPU and
says so only in its log. `CUFILE_ENV_PATH_JSON` points one process, or one node, at a file of its own.

Not guaranteed: comments are lost in a file that is written again. Keys that we do not know are kept as they are.

Source: NVIDIA GPUDirect Storage Configuration Guide (cufile.json); the file that libcufile ships.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebbtide.storage.errors import Refused

DEFAULT_PATH = "/etc/cufile.json"  # compiled into libcufile
PATH_VARIABLE = "CUFILE_ENV_PATH_JSON"
ADDRESSES = "rdma_dev_addr_list"
_MAX_BYTES = 1 << 20  # the stock file has 8 KB


def path_in_force(environ: Mapping[str, str]) -> str:
    """The file that cuFile would read in a process with this environment."""
    return environ.get(PATH_VARIABLE) or DEFAULT_PATH


def parse(text: str, name: Path | str) -> dict[str, Any]:
    """The settings in ``text``.

    Raises:
        Refused: it is no JSON object; the message has line and column.
    """
    try:
        found = json.loads(without_comments(text))
    except json.JSONDecodeError as error:
        raise Refused(f"{name}:{error.lineno}:{error.colno}: this is no JSON: {error.msg}") from error
    except RecursionError as error:
        raise Refused(f"{name}: this is no settings file: nested too deep") from error
    if not isinstance(found, dict):
        raise Refused(f"{name}:1:1: a settings file must hold one JSON object, not a {type(found).__name__}")
    return found


def without_comments(text: str) -> str:
    """``text`` with comments (``//`` to the end of the line, ``/* */``) made spaces: places stay where they are."""
    kept: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            end = _string_end(text, at)
            kept.append(text[at:end])
        elif text.startswith(("//", "/*"), at):
            end = _comment_end(text, at)
            kept.append("".join(char if char in "\r\n" else " " for char in text[at:end]))
        else:
            end = at + 1
            kept.append(text[at])
        at = end
    return "".join(kept)


def _string_end(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] not in '"\n':
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def _comment_end(text: str, start: int) -> int:
    if text.startswith("//", start):
        found = text.find("\n", start)
        return len(text) if found < 0 else found
    found = text.find("*/", start + 2)
    return len(text) if found < 0 else found + 2


def load(path: Path) -> dict[str, Any]:
    """The settings in the file at ``path``.

    Raises:
        OSError: it cannot be read.
        Refused: it is no JSON object.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise Refused(f"{path}: this is no settings file: it has more than {_MAX_BYTES} bytes")
    try:
        return parse(data.decode(), path)
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: this is no JSON: byte {error.start} is not UTF-8") from error


def setting(config: Mapping[str, Any], section: str, key: str, default: Any = None) -> Any:
    """``config[section][key]``, or ``default`` where one of the two is not there or no object."""
    found = config.get(section)
    return found.get(key, default) if isinstance(found, Mapping) else default


def listed_addresses(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every list of addresses in the file, by where it stands; lists that are empty or no lists are left out."""
    return {
        where: tuple(str(one) for one in holder[ADDRESSES])
        for where, holder in _holders(config)
        if isinstance(holder.get(ADDRESSES), list) and holder[ADDRESSES]
    }


def _holders(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    properties = config.get("properties")
    if isinstance(properties, dict):
        yield f"properties.{ADDRESSES}", properties
    filesystems = config.get("fs")
    for name, filesystem in filesystems.items() if isinstance(filesystems, dict) else ():
        if not isinstance(filesystem, dict):
            continue
        yield f"fs.{name}.{ADDRESSES}", filesystem
        mounts = filesystem.get("mount_table")
        for mount, its in mounts.items() if isinstance(mounts, dict) else ():
            if isinstance(its, dict):
                yield f"fs.{name}.mount_table.{mount}.{ADDRESSES}", its


def with_addresses(config: Mapping[str, Any], addresses: Sequence[str], devices: Sequence[str] = ()) -> dict[str, Any]:
    """``config`` with ``addresses`` as the node's list, and each list under ``fs`` freed of what is not here any more.

    A list under ``fs`` is somebody's choice among the interfaces: what still exists of it is kept, and where nothing
    does, it gets all addresses. ``devices`` are names such as ``mlx5_0``, which may stand in place of addresses.

    Raises:
        Refused: ``properties`` is there and no object.
    """
    new: dict[str, Any] = json.loads(json.dumps(config))
    properties = new.setdefault("properties", {})
    if not isinstance(properties, dict):
        raise Refused(f"'properties' must be a JSON object, not a {type(properties).__name__}")
    here = {*addresses, *devices}
    for where, holder in _holders(new):
        if where.startswith("fs.") and isinstance(holder.get(ADDRESSES), list) and holder[ADDRESSES]:
            holder[ADDRESSES] = [one for one in holder[ADDRESSES] if one in here] or list(addresses)
    properties[ADDRESSES] = list(addresses)
    return new


def write_addresses(
    path: Path, addresses: Sequence[str], *, devices: Sequence[str] = (), base: Path | None = None
) -> None:
    """Put ``addresses`` into the file at ``path``, atomically; its other keys stay.

    Args:
        path: the file. Where it is a link, what it points to is replaced.
        addresses: of this node's interfaces.
        devices: see `with_addresses`.
        base: the file whose other keys are taken over where there is none at ``path`` yet.

    Raises:
        Refused: the file there (or the base) is no JSON object; nothing was changed.
        OSError: it cannot be read or written; nothing was changed.
    """
    target = path.resolve()
    mode = 0o644  # it holds no secret, and cuFile reads it as any user
    if target.exists():
        config, mode = load(target), target.stat().st_mode & 0o777
    else:
        config = load(base) if base is not None and base.exists() else {}
    text = json.dumps(with_addresses(config, addresses, devices), indent=4) + "\n"
    file, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(file, "w") as out:
            out.write(text)
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
