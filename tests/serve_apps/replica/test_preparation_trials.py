"""Restored caches with which an engine does not start, from one start to the next."""

import os
from pathlib import Path

from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.engine.port import EngineSettings
from ebbtide_serve.testing.fake_engine import FakeEngine
from tests.builders.replica import environment, prepared, store  # noqa: F401 - fixtures


async def after_a_start(tmp_path: Path, content: bytes, *, fails: bool = False) -> bytes | None:
    """A replica's life: the cache that it found restored."""
    made, _ = await prepared(tmp_path)
    place = Path(os.environ["VLLM_CACHE_ROOT"]) / "graph"
    found = place.read_bytes() if place.exists() else None
    if fails:
        made.failed()
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        await made.settle(FakeEngine(EngineSettings("small", "")))
    made.close()
    return found


async def test_caches_with_which_a_start_failed_are_left_alone_by_the_next_and_then_replaced(
    store: ObjectStore, tmp_path: Path
) -> None:
    assert await after_a_start(tmp_path, b"bad") is None
    assert await after_a_start(tmp_path, b"", fails=True) == b"bad"
    assert await after_a_start(tmp_path, b"", fails=True) is None, "not their fault, it seems"
    assert await after_a_start(tmp_path, b"good") is None
    assert await after_a_start(tmp_path, b"good") == b"good"
    assert len(list(store.paths.quarantine.iterdir())) == 1
    assert list((tmp_path / "cache" / "replicas").iterdir()) == []


async def test_a_replica_that_is_closed_while_it_starts_makes_nothing_suspect(
    store: ObjectStore, tmp_path: Path
) -> None:
    await after_a_start(tmp_path, b"good")
    made, _ = await prepared(tmp_path)
    made.close()
    assert await after_a_start(tmp_path, b"good") == b"good"
