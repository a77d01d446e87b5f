"""The config.json of a model that is at hand: in a directory, or in the pool's store under its name."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.config.sections.scalars import is_stored_model

STORE = "store"  # below the pool's shared directory
OTHER_FORMAT = ("params.json", "sentence_*_config.json")
"""Files beside it that go before it in vLLM 0.29: Mistral's own format, and the length of an embedding model."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One that was read, and whether it alone decides."""

    path: Path
    content: dict[str, Any]
    alone: bool


def config_file(model: Path, shared_dir: Path | None) -> ConfigFile | None:
    """Of the model of an endpoint; None: it is not at hand, or cannot be read, which others tell of.

    Args:
        model: a directory, or ``name:tag`` of the store.
        shared_dir: of the pool.
    """
    directory = _stored(model, shared_dir) if is_stored_model(model) else model
    if directory is None:
        return None
    path = directory / "config.json"
    try:
        content = json.loads(path.read_bytes())
        alone = not any(found for name in OTHER_FORMAT for found in directory.glob(name))
    except (OSError, ValueError, RecursionError):
        return None
    return ConfigFile(path, content, alone) if isinstance(content, dict) else None


def _stored(model: Path, shared_dir: Path | None) -> Path | None:
    if shared_dir is None:
        return None
    # The store takes 0.3 s to import, and most files name directories.
    from ebbtide.storage.errors import StorageError  # noqa: PLC0415
    from ebbtide.storage.files.durable_files import Disk  # noqa: PLC0415
    from ebbtide.storage.objects.refs import Refs  # noqa: PLC0415
    from ebbtide.storage.objects.store_paths import StorePaths  # noqa: PLC0415

    paths = StorePaths(shared_dir / STORE)
    name, _, tag = str(model).rpartition(":")
    try:
        return paths.object(Refs(paths, Disk()).read(name, tag).object)
    except (StorageError, OSError):  # a model that is not there is told of where it is looked for
        return None
