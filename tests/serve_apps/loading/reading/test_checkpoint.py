"""Tensors in checkpoint order: the right bits, in bounded memory, and never a byte that was not published."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.objects.manifest import Kind
from ebbtide_serve.loading.reading import checkpoint as checkpoint_module
from ebbtide_serve.loading.reading.checkpoint import Checkpoint, stream_scope
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.reading.windows import Window
from tests.platform.storage.stores import CHUNK, overwrite
from tests.serve_apps.loading.small_model import (
    SHARDS,
    SmallModel,
    checkpoint_tensors,
    load_small,
    publish_small,
    publish_tensors,
    reach,
    right,
    same,
)

NAME = "model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> ProcessStore:
    return reach(tmp_path / "store")


def some(number: int, words: int = CHUNK // 2) -> dict[str, torch.Tensor]:
    """Tensors of about a third of a chunk up to two chunks, of odd sizes."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(words // 3, 4 * words, (number,), generator=random).tolist()
    return {f"{at:02}": torch.randint(-99, 99, (size,), generator=random).short() for at, size in enumerate(sizes)}


def checkpoint(store: ProcessStore, stored: object, **options: int) -> Checkpoint:
    return Checkpoint(stored, torch.device("cpu"), store, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_the_models_own_mapping_sees_the_right_tensors(store: ProcessStore, tp: int, rank: int) -> None:
    model = SmallModel(tp, rank)
    _, report = load_small(store, publish_small(store.store), model)
    assert same(model, right(tp, rank))
    assert report.bytes == sum((store.store.paths.objects / path).stat().st_size for path in _files(store))


def _files(store: ProcessStore) -> list[Path]:
    return [path for path in store.store.paths.objects.rglob("*.safetensors")]


def test_all_windows_together_are_the_file_and_memory_is_used_again(store: ProcessStore) -> None:
    tensors = some(40)
    published = publish_tensors(store.store, {NAME: tensors})
    with store.store.open(published) as stored:
        reader = checkpoint(store, stored, window_bytes=2 * CHUNK)
        for name, tensor in reader.tensors([NAME]):
            assert torch.equal(tensor, tensors.pop(name))
            assert tensor.data_ptr() % 64 == 0
            del tensor
        assert not tensors
        assert reader.report.bytes == stored.file(NAME).entry.size_bytes, "each chunk was read once"
        gc.collect()
        assert store.arenas.free_bytes == store.arenas.total_bytes <= 4 * (4 << 20), "three windows and one in hand"


def test_a_tensor_that_is_kept_keeps_its_bits(store: ProcessStore) -> None:
    tensors = some(40)
    published = publish_tensors(store.store, {NAME: tensors})
    with store.store.open(published) as stored:
        kept = list(checkpoint(store, stored, window_bytes=CHUNK).tensors([NAME]))
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in kept)


def test_tensors_that_are_not_wanted_are_not_read(store: ProcessStore) -> None:
    tensors = some(40)
    published = publish_tensors(store.store, {NAME: tensors})
    with store.store.open(published) as stored:
        reader = checkpoint(store, stored, window_bytes=CHUNK)
        found = dict(reader.tensors([NAME], lambda name: name in ("03", "30")))
        assert found.keys() == {"03", "30"}
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items())
        assert reader.report.bytes <= sum(found[name].nbytes for name in found) + 4 * CHUNK


def test_no_tensor_of_a_damaged_window_is_given(store: ProcessStore) -> None:
    tensors = some(40)
    published = publish_tensors(store.store, {NAME: tensors})
    path = store.store.paths.object(published) / NAME
    overwrite(path, 20 * CHUNK + 5, b"\xee\xee\xee")
    with store.store.open(published) as stored:
        given: dict[str, torch.Tensor] = {}
        with pytest.raises(Corrupt, match=f"{NAME}.* at byte {20 * CHUNK}"):
            given.update(checkpoint(store, stored, window_bytes=CHUNK).tensors([NAME]))
        for name, tensor in checkpoint(store, stored, window_bytes=CHUNK).tensors(
            [NAME], lambda name: stored.header(NAME).named()[name].end < 20 * CHUNK
        ):
            given[name] = tensor
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in given.items())
        bad = [entry.name for entry in stored.header(NAME).entries if entry.offset < 20 * CHUNK + 8 <= entry.end + 8]
        assert not given.keys() & {name for name in bad if stored.header(NAME).named()[name].end > 20 * CHUNK + 5}


def test_a_reader_that_is_given_up_lets_go_of_its_memory(store: ProcessStore) -> None:
    published = publish_tensors(store.store, {NAME: some(40)})
    with store.store.open(published) as stored:
        tensors = checkpoint(store, stored, window_bytes=CHUNK).tensors([NAME])
        next(tensors)
        tensors.close()  # type: ignore[attr-defined]
    gc.collect()
    assert store.arenas.free_bytes == store.arenas.total_bytes > 0


def test_a_type_that_torch_lacks_is_refused_before_anything_is_given(store: ProcessStore) -> None:
    from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, from_buffers, plan_container

    plan = plan_container([TensorSpec("odd", "F4", (8,))])
    with store.store.publication(Kind.MODEL, {"model": "odd"}, chunk_bytes=CHUNK) as work:
        fill = filling(plan, from_buffers({"odd": memoryview(bytearray(4))}))
        work.add(work.staging.write(NAME, plan.file_bytes, fill))
        published = work.publish()
    with (
        store.store.open(published) as stored,
        pytest.raises(Refused, match="'odd' is of type F4"),
    ):
        checkpoint(store, stored).check_types([NAME])


def test_an_empty_tensor_and_a_scalar_have_their_shapes(store: ProcessStore) -> None:
    tensors = {"none": torch.empty(0, 3), "one": torch.tensor(2.5), "last": torch.empty(4, 0)}
    published = publish_tensors(store.store, {NAME: tensors})
    with store.store.open(published) as stored:
        found = dict(checkpoint(store, stored).tensors([NAME]))
    assert found.keys() == tensors.keys()
    assert all(found[name].shape == tensors[name].shape for name in tensors)
    assert found["one"] == 2.5


def test_names_of_two_shards_come_from_both(store: ProcessStore) -> None:
    published = publish_small(store.store)
    with store.store.open(published) as stored:
        assert {name for name, _ in checkpoint(store, stored).tensors(SHARDS)} == checkpoint_tensors().keys()


def test_windows_are_lent_in_the_order_of_the_readers_stream(
    store: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the memory of a window could be lent again while copies from it are queued (see the module)."""
    seen: list[tuple[str, str]] = []

    def scope_of(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
        seen.append(("taken", threading.current_thread().name))

        @contextmanager
        def scope() -> Iterator[None]:
            seen.append(("entered", threading.current_thread().name))
            yield
            seen.append(("left", threading.current_thread().name))

        return scope

    monkeypatch.setattr(checkpoint_module, "stream_scope", scope_of)
    lend = Checkpoint._lend

    def lending(self: Checkpoint, window: Window) -> Any:
        seen.append(("lent", threading.current_thread().name))
        return lend(self, window)

    monkeypatch.setattr(Checkpoint, "_lend", lending)
    published = publish_tensors(store.store, {NAME: some(10)})
    with store.store.open(published) as stored:
        assert len(list(checkpoint(store, stored, window_bytes=2 * CHUNK).tensors([NAME]))) == 10
    assert seen[0] == ("taken", threading.current_thread().name)
    [behind] = {thread for _, thread in seen[1:]}
    assert behind.startswith("read-ahead")
    inside = False
    for what, _ in seen[1:]:
        assert what != "lent" or inside
        inside = what != "left"


def test_on_a_gpu_that_is_the_stream_of_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, entered = torch.device("cuda", 0), list[object]()

    def enter(stream: object) -> AbstractContextManager[None]:
        entered.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda asked: f"stream of {threading.get_ident()} on {asked}")
    monkeypatch.setattr(torch.cuda, "stream", enter)
    scope = stream_scope(device)
    thread = threading.Thread(target=scope)
    thread.start()
    thread.join()
    assert entered == [f"stream of {threading.get_ident()} on cuda:0"]
    with stream_scope(torch.device("cpu"))():
        assert len(entered) == 1
