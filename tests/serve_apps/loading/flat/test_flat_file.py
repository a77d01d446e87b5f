"""One rank's file: written from a model, read into another, and refused where anything differs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ebbtide.storage.errors import Corrupt
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.safetensors.file_layout import filling, from_buffers
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.flat_file import flat_memory, plan_flat, read_flat
from ebbtide_serve.loading.flat.layout import buffers_of, layout_of
from ebbtide_serve.loading.reading.process_store import ProcessStore
from tests.platform.storage.stores import CHUNK, overwrite, stock_tensors
from tests.serve_apps.loading.small_model import SmallModel, reach, right, same

NAME = "tp1/rank0.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> ProcessStore:
    return reach(tmp_path / "store")


def write(store: ProcessStore, model: nn.Module, buffers: tuple[str, ...] = (), chunk: int = 4096) -> ObjectId:
    layout, found = layout_of(model), buffers_of(model, buffers)
    plan = plan_flat(layout, found)
    memory = {name: data.numpy().data for name, data in flat_memory(layout, found).items()}
    with store.store.publication(Kind.FLAT, {"of": "small"}, chunk_bytes=chunk) as work:
        work.add(work.staging.write(NAME, plan.file_bytes, filling(plan, from_buffers(memory))))
        return work.publish()


def read(store: ProcessStore, published: ObjectId, model: nn.Module) -> TransferReport:
    with store.store.open(published) as stored:
        return read_flat(stored, NAME, model, layout_of(model), reach=store)


def test_what_was_written_of_one_model_fills_another(store: ProcessStore) -> None:
    published = write(store, right())
    model = SmallModel()
    report = read(store, published, model)
    assert same(model, right())
    with store.store.open(published) as stored:
        header = stored.header(NAME)
    assert report.bytes == header.file_bytes - header.data_offset


def test_the_file_is_plain_safetensors(store: ProcessStore) -> None:
    published = write(store, right())
    stock = stock_tensors((store.store.paths.object(published) / NAME).read_bytes())
    assert stock["norm.weight"][:2] == ("BF16", (64,))
    assert stock["out.weight"][1] == (64, 64), "in the order of memory"
    assert stock["none"] == ("BF16", (0, 64), b"")


def test_buffers_that_loading_fills_are_stored_and_filled(store: ProcessStore) -> None:
    source = right()
    source.rope.fill_(5)
    model = SmallModel()
    read(store, write(store, source, ("rope",)), model)
    assert model.rope.eq(5).all()


def other_dtype(model: SmallModel) -> None:
    model.norm.weight = nn.Parameter(torch.zeros(64, dtype=torch.float16), requires_grad=False)


def other_shape(model: SmallModel) -> None:
    model.norm.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.bfloat16), requires_grad=False)


def other_name(model: SmallModel) -> None:
    model.norm2, model.norm = model.norm, nn.Module()


def other_order(model: SmallModel) -> None:
    model.out.weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.bfloat16), requires_grad=False)


def untied(model: SmallModel) -> None:
    model.zz = nn.Module()
    model.zz.extra = nn.Parameter(model.norm.weight.data, requires_grad=False)  # one memory, two names


def no_buffer(model: SmallModel) -> None:
    del model.rope


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (other_dtype, "norm.weight is BF16 .* and F16"),
        (other_shape, r"norm.weight is BF16 \[64\] .* \[8, 8\] in the model"),
        (other_name, "norm2?.weight, which is only in"),
        (other_order, "lie otherwise in memory"),
        (untied, "lie otherwise in memory"),
        (no_buffer, "no buffer rope"),
    ],
)
def test_a_model_that_differs_is_refused_by_name_and_not_a_byte_changes(
    store: ProcessStore, change: object, told: str
) -> None:
    published = write(store, right(), ("rope",))
    model, twin = SmallModel(), SmallModel()
    change(model)  # type: ignore[operator]
    change(twin)  # type: ignore[operator]
    with pytest.raises(FlatUnusable, match=told):
        read(store, published, model)
    assert same(model, twin)


def test_a_file_that_does_not_say_its_layout_is_refused(store: ProcessStore) -> None:
    from tests.serve_apps.loading.small_model import publish_tensors

    published = publish_tensors(store.store, {NAME: {"a": torch.zeros(3)}}, kind=Kind.FLAT)
    with pytest.raises(FlatUnusable, match="does not say"):
        read(store, published, SmallModel())


@pytest.mark.parametrize("damage", [b"\xff", b"\0" * 4096, b"\x01\x02\x03\x04"])
def test_nothing_of_a_damaged_chunk_reaches_a_parameter(store: ProcessStore, damage: bytes) -> None:
    """What was copied before is right; the rest is as it was. So another way of loading may follow."""
    published = write(store, right())
    overwrite(store.store.paths.object(published) / NAME, 5 * 4096 + 17, damage)
    model, untouched, whole = SmallModel(), SmallModel(), right()
    with pytest.raises(Corrupt, match=f"{NAME}.* at byte {5 * 4096}"):
        read(store, published, model)
    for name, data in layout_of(model).memory().items():
        as_before = data == layout_of(untouched).memory()[name]
        as_wanted = data == layout_of(whole).memory()[name]
        assert bool((as_before | as_wanted).all()), name


def test_files_of_many_chunks_are_read_in_full(store: ProcessStore) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.randn(5 * CHUNK + 3), requires_grad=False)
    twin = nn.Module()
    twin.w = nn.Parameter(torch.zeros(5 * CHUNK + 3), requires_grad=False)
    read(store, write(store, model, chunk=CHUNK), twin)
    assert torch.equal(model.w, twin.w)


def test_a_parameter_that_would_be_taken_for_a_buffer_is_refused() -> None:
    model = nn.Module()
    model.register_parameter("buffer:rope", nn.Parameter(torch.zeros(3), requires_grad=False))
    with pytest.raises(FlatUnusable, match="a parameter is called 'buffer:rope'"):
        plan_flat(layout_of(model), {})
