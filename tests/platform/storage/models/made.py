"""Checkpoints for tests, made with the reference library, and stores to import them into."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.models.importer.import_progress import Observe
from ebbtide.storage.models.importer.import_terms import Imported, ImportTerms
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.source import Source
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.stores import CHUNK

Arrays = Mapping[str, NDArray[np.generic]]

# Half of stale_after_s must be longer than a busy machine ever keeps a ready process waiting.
PACE = Pace(beat_s=0.1, stale_after_s=5.0, answer_s=10.0)
TERMS = ImportTerms(deadline_s=120.0, chunk_bytes=CHUNK, stretch_bytes=4 * CHUNK, pace=PACE)
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def weights(seed: int = 0, *, layers: int = 3, width: int = 192) -> dict[str, NDArray[np.generic]]:
    """Some 150 KiB a layer: whole pages, odd sizes, several types, names that sort badly as text."""
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[np.generic]] = {"model.embed.weight": rng.standard_normal((64, width)).astype(np.float32)}
    for layer in range(layers):
        stem = f"model.layers.{layer * 7}"
        found[f"{stem}.w"] = rng.standard_normal((width, width)).astype(np.float32)
        found[f"{stem}.norm"] = rng.standard_normal(width + 1).astype(np.float16)
        found[f"{stem}.scale"] = rng.integers(0, 255, 7, dtype=np.uint8)
    found["größe.weight 重み"] = rng.standard_normal(3)
    found["empty"] = np.empty((0, 4), dtype=np.float32)
    return found


def make_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 2, layers: int = 3, config: bool = True
) -> dict[str, NDArray[np.generic]]:
    """A checkpoint as its authors publish it; one shard: without an index. Returns its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = weights(seed, layers=layers)
    names = list(arrays)
    if shards == 1:
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    else:
        parts = [names[number::shards] for number in range(shards)]
        files = [f"model-{number + 1:05d}-of-{shards:05d}.safetensors" for number in range(shards)]
        for file, part in zip(files, parts, strict=True):
            save_file({name: arrays[name] for name in part}, folder / file, {"format": "pt"})
        weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        total = sum(array.nbytes for array in arrays.values())
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        )
    if config:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"vocab": {"ä": 1}}}))
    return arrays


def bring(
    store: ObjectStore,
    source: Source | Path,
    name: str | None = "org/model",
    *,
    terms: ImportTerms = TERMS,
    observe: Observe | None = None,
) -> Imported:
    """Import with the tests' terms."""
    found = LocalSource(source) if isinstance(source, Path) else source
    return import_model(store, found, None if name is None else (name, "latest"), terms=terms, observe=observe)


def stored_arrays(store: ObjectStore, object_id: ObjectId) -> dict[str, NDArray[np.generic]]:
    """All tensors of a model: read and checked by us; compared with what the reference library reads."""
    found: dict[str, NDArray[np.generic]] = {}
    with store.open(object_id) as stored:
        for entry in stored.manifest.files:
            if entry.name.endswith(".safetensors"):
                ours = stored.read_arrays(entry.name)
                stock = load_file(store.paths.object(object_id) / entry.name)
                assert_same(ours, stock)
                found |= stock
    return found


def assert_same(found: Arrays, wanted: Arrays) -> None:
    """The same tensors, bit for bit."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name
