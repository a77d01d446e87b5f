"""Before an engine and after it: the model from the store, caches of one's own, and what may fail without harm."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config.sections.storage_section import StorageSection
from ebbtide.storage.files import shared_files
from ebbtide.storage.files.file_operations import CreateFile
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import leave_limits
from ebbtide_serve.compile_cache.cache_dir import own_directory
from ebbtide_serve.engine.port import EngineSettings, EngineStats
from ebbtide_serve.engine.start_report import StartReport
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.loading.reading.process_store import process_store
from ebbtide_serve.process import pool_store
from ebbtide_serve.replica import preparation as preparation_module
from ebbtide_serve.replica.preparation import STORE
from ebbtide_serve.testing.fake_engine import FakeEngine
from tests.builders.replica import environment, preparation, prepared, store  # noqa: F401 - fixtures
from tests.platform.storage.stores import store_at
from tests.serve_apps.loading.small_model import SHARDS, checkpoint_tensors, publish_tensors


def directory(tmp_path: Path) -> Path:
    """A model that is in no store."""
    import safetensors.torch

    out = tmp_path / "plain"
    out.mkdir()
    safetensors.torch.save_file(checkpoint_tensors(), out / "model.safetensors")
    (out / "config.json").write_text('{"model_type": "llama"}')
    (out / "tokenizer.json").write_text("{}")
    return out


async def test_a_model_of_the_store_is_served_from_there_and_leased(store: ObjectStore, tmp_path: Path) -> None:
    made, stages = await prepared(tmp_path)
    try:
        told = made.settings()
        assert stages == ["model", "caches"]
        assert told.load_format == "ebbtide_flat"
        assert told.weights is not None
        assert told.model_dir == str(told.weights.model_dir)
        assert (told.weights.store, told.weights.capture) == (tmp_path / "shared" / STORE, True)
        assert (Path(told.model_dir) / SHARDS[0]).is_file()
        leases = [path.name for path in store.paths.leases.iterdir()]
        assert any(name.startswith(of_object(told.weights.model)) for name in leases)
        assert os.environ["VLLM_X"] == "1"
    finally:
        made.close()
    assert list(store.paths.leases.iterdir()) == []


@pytest.mark.parametrize(
    ("weights", "load_format", "capture"), [("flat", "ebbtide_flat", True), ("checkpoint", "ebbtide", False)]
)
async def test_the_endpoints_wish_decides_the_format(
    store: ObjectStore, tmp_path: Path, weights: str, load_format: str, capture: bool
) -> None:
    made, _ = await prepared(tmp_path, weights=weights, caches=False)
    told = made.settings()
    made.close()
    assert told.weights is not None
    assert (told.load_format, told.weights.capture) == (load_format, capture)


async def test_vllms_own_way_is_given_a_directory_and_no_store(store: ObjectStore, tmp_path: Path) -> None:
    made, _ = await prepared(tmp_path, weights="engine")
    told = made.settings()
    made.close()
    assert (told.load_format, told.weights) == ("", None)
    assert (Path(told.model_dir) / SHARDS[0]).is_file()
    plain = directory(tmp_path)
    made, stages = await prepared(tmp_path, str(plain), weights="engine", caches=False)
    assert (made.settings(), stages) == (EngineSettings("small", str(plain), {"max_model_len": 64}), ["model"])


async def test_a_directory_for_which_the_pool_has_no_room_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    leave_limits(tmp_path / "shared", StorageSection(models_max=1000, bytes_per_s_per_node=10**9))
    made, _ = await prepared(tmp_path, str(directory(tmp_path)))
    told = made.settings()
    transport: Any = made._store.ports.transport if made._store is not None else None
    made.close()
    assert told.weights is None and "raise pool.storage.models_max" in told.why_own
    assert transport._traffic.rates.budget.bytes_per_s == 10**9


async def test_a_directory_is_brought_into_the_store_at_first_use(tmp_path: Path) -> None:
    plain = directory(tmp_path)
    (tmp_path / "shared").mkdir()
    made, _ = await prepared(tmp_path, str(plain))
    told = made.settings()
    made.close()
    assert told.weights is not None
    again, _ = await prepared(tmp_path, str(plain))
    assert again.settings() == told
    again.close()
    store = store_at(tmp_path / "shared" / STORE)
    assert [store.manifest(one).kind for one in store.list_objects()] == [Kind.MODEL]


async def test_a_directory_that_cannot_be_brought_in_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = directory(tmp_path)
    (plain / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0 nothing")
    (tmp_path / "shared").mkdir()
    made, stages = await prepared(tmp_path, str(plain))
    assert made.settings() == EngineSettings("small", str(plain), {"max_model_len": 64})
    assert stages == ["model", "caches"]
    assert "is read as it is: " in caplog.text and "is read as it is: " in made.settings().why_own
    made.close()


async def test_without_a_shared_directory_a_directory_is_served_and_a_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("no directory")
    made, _ = await prepared(tmp_path, str(directory(tmp_path)))
    assert made.settings().weights is None
    await made.settle(FakeEngine(EngineSettings("small", "")))
    made.close()
    with pytest.raises(EngineFailed, match="the model org/small:latest of endpoint small cannot be had"):
        await prepared(tmp_path)


async def test_a_directory_that_the_engine_is_to_read_is_read_for_that_reason_whatever_becomes_of_the_store(
    tmp_path: Path,
) -> None:
    (tmp_path / "shared").write_text("no directory")
    made, _ = await prepared(tmp_path, str(directory(tmp_path)), weights="engine")
    assert made.settings().why_own == "load.weights is engine"
    made.close()


async def test_a_model_that_nobody_published_is_an_error_that_tells_what_to_do(
    store: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailed, match=r"tags of org/small: latest.*ebbtide models import"):
        await prepared(tmp_path, "org/small:other")


async def test_what_one_replica_compiled_the_next_one_finds_in_a_directory_of_its_own(
    store: ObjectStore, tmp_path: Path
) -> None:
    first, _ = await prepared(tmp_path)
    place = Path(os.environ["VLLM_CACHE_ROOT"])
    assert list(place.parent.iterdir()) == []
    (place / "torch_compile_cache").mkdir(parents=True)
    (place / "torch_compile_cache" / "graph").write_bytes(b"compiled")
    await first.settle(FakeEngine(EngineSettings("small", "")))

    second, _ = await prepared(tmp_path)
    other = Path(os.environ["VLLM_CACHE_ROOT"])
    assert other != place
    assert (other / "torch_compile_cache" / "graph").read_bytes() == b"compiled"
    first.close()
    second.close()
    assert list((tmp_path / "cache" / "replicas").iterdir()) == []

    changed = preparation(tmp_path)
    changed._wish.args["max_model_len"] = 128  # type: ignore[index]
    await changed.prepare(lambda stage: None)
    assert list(Path(os.environ["VLLM_CACHE_ROOT"]).parent.iterdir()) == []
    changed.close()


@pytest.mark.parametrize("other", ["model", "ranks", "environment", "configuration"])
async def test_what_was_compiled_for_another_model_or_engine_is_not_restored(
    store: ObjectStore, tmp_path: Path, other: str
) -> None:
    plain = directory(tmp_path)
    how: dict[str, Any] = {"model": str(plain), "weights": "engine"} if other == "configuration" else {}
    first, _ = await prepared(tmp_path, **how)
    place = Path(os.environ["VLLM_CACHE_ROOT"])
    place.mkdir(parents=True)
    (place / "graph").write_bytes(b"compiled")
    await first.settle(FakeEngine(EngineSettings("small", "")))
    first.close()
    assert len(store.refs.list("artefact/")) == 1
    made = preparation(tmp_path, **how)
    match other:
        case "model":
            found = publish_tensors(store, {SHARDS[0]: checkpoint_tensors(1)})
            store.refs.write("org/small", "latest", found)
        case "ranks":
            made._wish = replace(made._wish, ranks=2)
        case "environment":
            os.environ.pop("VLLM_X")  # which the first one set
            made._environment["VLLM_X"] = "2"
        case _:
            (plain / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 3}')
    await made.prepare(lambda stage: None)
    assert list(Path(os.environ["VLLM_CACHE_ROOT"]).parent.iterdir()) == []
    made.close()


async def test_caches_of_a_process_that_is_dead_go_when_the_next_replica_comes(
    store: ObjectStore, tmp_path: Path
) -> None:
    dead = own_directory(tmp_path / "cache" / "replicas", 2**22 + 1, 7)  # above the largest process id
    (dead / "vllm").mkdir(parents=True)
    made, _ = await prepared(tmp_path)
    assert not dead.exists()
    made.close()


class Tells(FakeEngine):
    """With something to do afterwards."""

    settled_with: ObjectStore | None = None

    def start_report(self) -> StartReport:
        return StartReport()

    async def settle(self, store: ObjectStore) -> str:
        self.settled_with = store
        return "done"

    def stats(self) -> EngineStats:
        return EngineStats()


async def test_the_engine_is_asked_to_settle_with_the_store(store: ObjectStore, tmp_path: Path) -> None:
    made, _ = await prepared(tmp_path)
    engine = Tells(EngineSettings("small", ""))
    await made.settle(engine)
    made.close()
    assert engine.settled_with is not None
    assert engine.settled_with.paths.root == store.paths.root


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store that does not open before the test has ended, or for a long time."""
    over = threading.Event()
    monkeypatch.setattr(pool_store, "STORE_ANSWERS_S", 0.5)
    monkeypatch.setattr(ObjectStore, "at", lambda *_args, **_options: over.wait(20))
    yield
    over.set()


async def test_a_store_that_hangs_does_not_hang_the_start(
    hung: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, began_s = str(directory(tmp_path)), time.monotonic()
    for weights in ("flat", "engine"):
        made, stages = await prepared(tmp_path, plain, weights=weights)
        assert made.settings() == EngineSettings("small", plain, {"max_model_len": 64})
        assert stages == ["model", "caches"]
        made.close()
    with pytest.raises(
        EngineFailed, match=r"org/small:latest of endpoint small cannot be had: .*no answer within 0.5 s"
    ):
        await prepared(tmp_path)
    assert time.monotonic() - began_s < 15
    assert "no answer within 0.5 s" in caplog.text


async def test_a_store_that_hangs_while_a_model_is_looked_up_does_not_hang_the_start(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(preparation_module, "LOOK_UP_S", 0.5)
    monkeypatch.setattr(preparation_module, "resolve", lambda *_: over.wait(20))
    with pytest.raises(EngineFailed, match=r"cannot be had: .*no answer within 0.5 s"):
        await prepared(tmp_path)
    over.set()


async def test_a_store_that_hangs_after_the_model_was_found_costs_the_caches(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, over = preparation(tmp_path), threading.Event()

    def found(stage: str) -> None:
        monkeypatch.setattr(pool_store, "STORE_ANSWERS_S", 0.5)
        monkeypatch.setattr(ObjectStore, "at", lambda *args, **options: over.wait(20))

    caplog.set_level("INFO")
    began_s = time.monotonic()
    await made.prepare(found)
    over.set()
    assert time.monotonic() - began_s < 15
    assert list(Path(os.environ["VLLM_CACHE_ROOT"]).parent.iterdir()) == []
    assert "caches of small: " in caplog.text and "no answer within 0.5 s" in caplog.text
    made.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
async def test_a_model_of_a_store_that_cannot_be_written_is_served(
    store: ObjectStore, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(operation: CreateFile) -> bool:
        raise OSError(code, os.strerror(code))

    monkeypatch.setitem(shared_files._DEEDS, CreateFile, ("create", refuse))
    made, stages = await prepared(tmp_path)
    assert stages == ["model", "caches"]
    told = made.settings()
    assert told.load_format == "ebbtide_flat"
    assert "without a lease" in caplog.text
    assert told.weights is not None
    reach = process_store(told.weights.store)
    with reach.store.open(told.weights.model) as stored:
        assert stored.header(SHARDS[0]).entries
    made.close()


async def test_caches_of_a_directory_without_a_readable_config_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are found by it, where the import refuses the directory or is not wanted."""
    caplog.set_level("INFO")
    plain = directory(tmp_path)
    (plain / "config.json").rename(plain / "params.json")
    (plain / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0 nothing")
    (tmp_path / "shared").mkdir()
    for weights in ("flat", "engine"):
        made, stages = await prepared(tmp_path, str(plain), weights=weights)
        assert stages == ["model", "caches"]
        assert made.settings().weights is None
        assert list(Path(os.environ["VLLM_CACHE_ROOT"]).parent.iterdir()) == []
        await made.settle(FakeEngine(EngineSettings("small", "")))
        made.close()
    assert "caches of small: " in caplog.text and "config.json" in caplog.text


async def test_a_directory_with_weights_that_the_store_would_not_take_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = directory(tmp_path)
    (plain / "whisper").mkdir()
    (plain / "whisper" / "model.safetensors").write_bytes((plain / "model.safetensors").read_bytes())
    Path(os.fsdecode(os.fsencode(plain) + b"/head\xff.pt")).write_bytes(b"")
    (tmp_path / "shared").mkdir()
    made, stages = await prepared(tmp_path, str(plain))
    assert made.settings() == EngineSettings("small", str(plain), {"max_model_len": 64})
    assert stages == ["model", "caches"]
    assert "whisper/model.safetensors" in caplog.text
    assert "head" in made.settings().why_own and made.settings().why_own.isprintable(), "it goes into the ledger"
    made.close()
    assert store_at(tmp_path / "shared" / STORE).list_objects() == []


async def test_what_an_import_leaves_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = directory(tmp_path)
    (plain / "modeling.py").write_text("")
    (tmp_path / "shared").mkdir()
    made, _ = await prepared(tmp_path, str(plain))
    made.close()
    assert "left out: modeling.py" in caplog.text


async def test_the_engine_settles_whatever_becomes_of_the_caches(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("not foreseen")

    monkeypatch.setattr(preparation_module, "publish", fail)
    made, _ = await prepared(tmp_path)
    engine = Tells(EngineSettings("small", ""))
    await made.settle(engine)
    made.close()
    assert engine.settled_with is not None


LOOK = """
import asyncio, json, os, sys
from pathlib import Path
from ebbtide_serve.replica.preparation import Preparation, Wish, LoadOptions
shared, cache = map(Path, sys.argv[1:3])
wish = Wish(name="small", model="org/small:latest", shared_dir=shared, cache_dir=cache)
made = Preparation(wish, pid=os.getpid(), started=1, environment={})
asyncio.run(made.prepare(lambda stage: None))
made.close()
print(json.dumps(sorted(name for name in sys.modules if name in ("vllm", "torch", "triton", "ray"))))
"""


def test_preparing_imports_neither_torch_nor_vllm(store: ObjectStore, tmp_path: Path) -> None:
    """vLLM reads the environment that is made here when it is imported, and torch some of it."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "shared"), str(tmp_path / "cache")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
