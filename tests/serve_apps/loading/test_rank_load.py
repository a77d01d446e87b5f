"""One rank's load: which way it goes, what it says, and that the parameters are right whichever way it went."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.storage.coordination.load_semaphore import LoadTerms, loading
from ebbtide.storage.errors import Corrupt, TransferTimeout
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading import rank_load
from ebbtide_serve.loading.flat import identity
from ebbtide_serve.loading.flat.flat_key import FlatKey
from ebbtide_serve.loading.flat.identity import EngineFacts
from ebbtide_serve.loading.flat.publishing import Outcome, publish_flat
from ebbtide_serve.loading.rank_load import CHECKPOINT, FLAT, RankLoad, Ways
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.settings import LoadSettings
from ebbtide_serve.loading.start_record import OWN
from tests.builders.rank_load import Rank, call_to
from tests.platform.storage.stores import overwrite
from tests.serve_apps.loading.small_model import (
    SHARDS,
    SmallModel,
    facts,
    load_small,
    publish_small,
    reach,
    repack,
)


@pytest.fixture
def store(tmp_path: Path) -> ProcessStore:
    return reach(tmp_path / "store")


@pytest.fixture
def wanted(store: ProcessStore) -> ObjectId:
    return publish_small(store.store)


def publish(ranks: list[Rank]) -> Outcome:
    for one in ranks:
        repack(one.model)  # as engines do right after a load
    return publish_flat(ranks[0].store.store, call_to(ranks))


@pytest.mark.parametrize("tp", [1, 2])
def test_the_second_start_reads_each_ranks_own_part_and_gets_the_same_parameters(
    store: ProcessStore, wanted: ObjectId, tp: int
) -> None:
    first = [Rank(store, wanted, tp, rank).load() for rank in range(tp)]
    assert all(one.record.used == CHECKPOINT and "no flat form of it yet" in one.said[0] for one in first)
    assert all(len(one.said) == 1 for one in first)
    found = publish(first)
    assert found.object is not None, found.why
    second = [Rank(store, wanted, tp, rank).load() for rank in range(tp)]
    for one in second:
        assert (one.record.used, one.said, one.record.reasons) == (FLAT, [], [])
        assert one.held.state()["phase"] == "none"
        assert one.record.transfer is not None
        entry = store.store.manifest(found.object).file(f"tp{tp}/rank{one.rank}.safetensors")
        assert one.record.transfer.bytes == entry.size_bytes
    assert store.store.manifest(found.object).kind is Kind.FLAT


def test_a_rank_holds_nothing_unless_it_was_asked_to(store: ProcessStore, wanted: ObjectId) -> None:
    one = Rank(store, wanted).load(capture=False)
    assert one.held.state()["phase"] == "none"
    assert one.held.state()["why"] == "it was not asked for"


def test_a_load_in_checkpoint_order_holds_nothing_if_the_flat_form_is_there(
    store: ProcessStore, wanted: ObjectId
) -> None:
    found = publish([Rank(store, wanted).load()])
    one = Rank(store, wanted).load(CHECKPOINT)
    assert (one.record.used, one.said) == (CHECKPOINT, [])
    assert one.held.state()["why"] == f"object {found.object} is there"


def test_a_damaged_flat_form_costs_a_line_and_is_replaced(store: ProcessStore, wanted: ObjectId) -> None:
    found = publish([Rank(store, wanted).load()])
    assert found.object is not None
    overwrite(store.store.paths.object(found.object) / "tp1/rank0.safetensors", 9000, b"\x7f\x7f")
    one = Rank(store, wanted).load()
    assert one.record.used == CHECKPOINT
    assert len(one.said) == 1
    assert "is not what was published" in one.said[0]
    again = publish([one])
    assert again.object == found.object, "the same bytes, put right"
    assert Rank(store, wanted).load().record.used == FLAT
    assert len(list(store.store.paths.quarantine.iterdir())) == 1


def test_a_flat_form_of_another_key_under_its_name_is_not_used(store: ProcessStore, wanted: ObjectId) -> None:
    one = Rank(store, wanted).load()
    state = one.held.state()
    found = publish([one])
    assert found.object is not None
    other = Rank(store, wanted, told=replace(facts(), quantization="fp8")).load()
    assert other.record.used == CHECKPOINT
    moved = other.held.state()
    store.store.refs.write(str(moved["ref_name"]), str(moved["tag"]), found.object)  # somebody mixed them up
    again = Rank(store, wanted, told=replace(facts(), quantization="fp8")).load()
    assert again.record.used == CHECKPOINT
    assert "of another key" in again.said[0]
    assert state["ref_name"] != moved["ref_name"]


def test_an_object_of_another_kind_under_the_name_of_a_flat_form_is_not_used(
    store: ProcessStore, wanted: ObjectId
) -> None:
    found = publish([Rank(store, wanted).load()])
    assert found.object is not None
    [ref] = store.store.refs.list("flat/")
    key = store.store.manifest(found.object).key
    content = (store.store.paths.object(found.object) / "tp1/rank0.safetensors").read_bytes()
    with store.store.publication(Kind.MODEL, dict(key)) as work:
        work.add(work.staging.write_bytes("tp1/rank0.safetensors", content))
        work.publish([(ref.name, ref.tag)])
    one = Rank(store, wanted).load()
    assert one.record.used == CHECKPOINT
    assert "of another key" in one.said[0]


def test_a_flat_form_of_another_key_is_not_found_by_another_tag(store: ProcessStore, wanted: ObjectId) -> None:
    found = publish([Rank(store, wanted).load()])
    assert found.object is not None
    other = replace(facts(), quantization="fp8")
    name = str(Rank(store, wanted, told=other).load().held.state()["ref_name"])
    store.store.refs.write(name, "tp1-rank7-of-somebody", found.object)
    again = Rank(store, wanted, told=other).load()
    assert again.record.used == CHECKPOINT
    assert "no flat form of it yet" in again.said[0]
    assert store.store.refs.tags(name) == ["tp1-rank7-of-somebody"]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (replace(facts(), quantizes_online=True), "quantised while it is loaded"),
        (replace(facts(), splits={"pipeline": 2}), "pipeline 2"),
    ],
)
def test_what_cannot_have_a_flat_form_is_loaded_in_checkpoint_order_for_a_reason(
    store: ProcessStore, wanted: ObjectId, told: EngineFacts, reason: str
) -> None:
    one = Rank(store, wanted, told=told).load()
    assert one.record.used == CHECKPOINT
    assert all(reason in line for line in one.said)
    assert one.held.state()["phase"] == "none"


def test_weights_that_did_not_come_from_the_store_become_no_flat_form(store: ProcessStore, wanted: ObjectId) -> None:
    one = Rank(store, wanted).load(own=True)
    assert one.record.used == OWN
    assert one.record.transfer is None
    assert one.held.state()["phase"] == "none"


def test_a_model_of_which_loading_changes_more_has_no_flat_form(store: ProcessStore, wanted: ObjectId) -> None:
    class Remembers(SmallModel):
        def load_weights(self, weights: object) -> set[str]:
            self.was_loaded = True
            return super().load_weights(weights)  # type: ignore[arg-type]

    one = Rank(store, wanted)
    one.model = Remembers()
    one.reload()
    assert "changes more of this model than its parameters: was_loaded" in one.said[-1]
    assert one.held.state()["phase"] == "none"


def test_a_model_of_which_loading_changes_the_layout_has_no_flat_form(store: ProcessStore, wanted: ObjectId) -> None:
    """The next start would look for it by the layout from before."""

    class LaysOut(SmallModel):
        def load_weights(self, weights: object) -> set[str]:
            loaded = super().load_weights(weights)  # type: ignore[arg-type]
            self.out.weight = torch.nn.Parameter(self.out.weight.data.contiguous(), requires_grad=False)
            return loaded

    one = Rank(store, wanted)
    one.model = LaysOut()
    one.reload()
    assert "loading changes the layout of its parameters" in one.said[-1]
    assert one.held.state()["phase"] == "none"


class FillsBuffer(SmallModel):
    def load_weights(self, weights: object) -> set[str]:
        self.rope.fill_(3)
        return super().load_weights(weights)  # type: ignore[arg-type]


def load_into(store: ProcessStore, wanted: ObjectId, model: SmallModel) -> Rank:
    """As `Rank.load`, of a model that is not as `right` has it."""
    one = Rank(store, wanted)
    one.model = model
    settings = LoadSettings(store.store.paths.root, wanted, True)
    load = RankLoad(settings, store, record=one.record, held=one.held, say=one.said.append)
    load.load(model, FLAT, Ways(facts(), lambda: load_small(store, wanted, model)))
    return one


def test_buffers_that_loading_fills_come_with_the_flat_form(store: ProcessStore, wanted: ObjectId) -> None:
    first = load_into(store, wanted, FillsBuffer())
    assert publish([first]).object is not None
    second = load_into(store, wanted, FillsBuffer())
    assert second.record.used == FLAT
    assert second.model.rope.eq(3).all()


def test_buffers_that_a_damaged_flat_form_filled_are_in_the_one_that_replaces_it(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sound chunks may come before or after the damaged one: then loading fills a buffer with what it has."""
    found = publish([load_into(store, wanted, FillsBuffer())])
    assert found.object is not None
    path = store.store.paths.object(found.object) / "tp1/rank0.safetensors"
    real: Callable[..., Any] = rank_load.read_flat  # type: ignore[attr-defined]

    def spoiled(*args: Any, **options: Any) -> TransferReport:
        real(*args, **options)
        overwrite(path, 9000, b"\x7f\x7f")
        raise Corrupt("not what was published", path, offset=8192)

    monkeypatch.setattr(rank_load, "read_flat", spoiled)
    second = load_into(store, wanted, FillsBuffer())
    assert second.record.used == CHECKPOINT
    monkeypatch.setattr(rank_load, "read_flat", real)
    assert publish([second]).object == found.object, "the same content, with the buffer"
    third = load_into(store, wanted, FillsBuffer())
    assert (third.record.used, third.said) == (FLAT, [])
    assert third.model.rope.eq(3).all()


def test_a_timeout_in_the_flat_form_is_followed_by_nothing(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was begun may still end, after the engine has repacked what a second load brought."""
    publish([Rank(store, wanted).load()])

    def hang(*_: object, **__: object) -> TransferReport:
        raise TransferTimeout("read", Path("f"), after_s=1)

    monkeypatch.setattr(rank_load, "read_flat", hang)
    one = Rank(store, wanted)
    with pytest.raises(TransferTimeout):
        one.load()
    assert one.record.used == ""


def test_a_flat_form_for_which_there_is_no_memory_costs_a_line(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish([Rank(store, wanted).load()])

    def full(*_: object, **__: object) -> TransferReport:
        raise MemoryError("no buffers")

    monkeypatch.setattr(rank_load, "read_flat", full)
    one = Rank(store, wanted).load()
    assert one.record.used == CHECKPOINT
    assert "no buffers" in one.said[0]


def test_a_timeout_before_anything_is_copied_costs_a_line(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish([Rank(store, wanted).load()])

    def hang(*_: object) -> object:
        raise TransferTimeout("create", Path("lease"), after_s=10)

    with monkeypatch.context() as slow:
        slow.setattr(store.store, "open_ref", hang)
        one = Rank(store, wanted).load()
    assert one.record.used == CHECKPOINT
    assert "no answer within 10 s" in one.said[0]


@pytest.mark.parametrize(
    ("told", "fails"),
    [
        (replace(facts(), config={"id2label": {0: "a", "b": "c"}}), "'<' not supported"),  # JSON cannot sort such keys
        (facts(), "sources are gone"),
    ],
)
def test_a_flat_form_that_cannot_be_named_costs_a_line(
    store: ProcessStore, wanted: ObjectId, told: EngineFacts, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(model: object) -> str:
        raise OSError("sources are gone")

    if not told.config:
        monkeypatch.setattr(identity, "code_digest", gone)
    one = Rank(store, wanted, told=told).load()
    assert one.record.used == CHECKPOINT
    assert all(fails in line for line in one.said)
    assert one.held.state()["phase"] == "none"


def test_a_rank_whose_tag_was_never_written_finds_the_flat_form_by_that_of_another(
    store: ProcessStore, wanted: ObjectId
) -> None:
    """Tags are written one after the other, and whoever does it may be killed between two."""
    found = publish([Rank(store, wanted, 2, rank).load() for rank in range(2)])
    [ref] = [ref for ref in store.store.refs.list("flat/") if "rank1" in ref.tag]
    assert store.store.refs.delete(ref.name, ref.tag)
    again = [Rank(store, wanted, 2, rank).load() for rank in range(2)]
    assert [(one.record.used, one.said) for one in again] == [(FLAT, []), (FLAT, [])]
    assert store.store.refs.read(ref.name, ref.tag).object == found.object


def test_a_flat_form_of_another_layout_is_not_found_by_another_tag(store: ProcessStore, wanted: ObjectId) -> None:
    publish([Rank(store, wanted).load()])
    model = SmallModel()
    model.extra = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    one = load_into(store, wanted, model)
    assert one.record.used == CHECKPOINT
    assert "no flat form of it yet" in one.said[0]
    assert len(store.store.refs.list("flat/")) == 1


def test_a_damaged_checkpoint_is_an_error_and_nothing_follows(store: ProcessStore, wanted: ObjectId) -> None:
    overwrite(store.store.paths.object(wanted) / SHARDS[1], 5000, b"\x7f\x7f")
    one = Rank(store, wanted)
    with pytest.raises(Corrupt, match=SHARDS[1]):
        one.load()
    assert one.held.state()["phase"] == "none"


def test_parameters_that_would_take_too_much_memory_are_not_kept(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_load, "memory_for_capture", lambda ranks: 1000)
    one = Rank(store, wanted).load()
    assert "would take too much memory" in one.said[-1]
    assert one.held.state()["phase"] == "none"


def test_a_second_model_of_one_engine_is_not_kept_but_told(store: ProcessStore, wanted: ObjectId) -> None:
    one = Rank(store, wanted).load()
    one.told = replace(facts(), config={"draft": 1})
    one.load()
    assert "keeps the parameters of another model already" in one.said[-1]
    key = one.held.state()["key"]
    assert isinstance(key, dict)
    assert key["config"] != FlatKey.__name__
    assert (one.record.used, one.record.transfer is not None) == (CHECKPOINT, True)


def test_what_is_kept_is_a_copy(store: ProcessStore, wanted: ObjectId) -> None:
    one = Rank(store, wanted).load()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.fill_(9)
    assert publish([one]).object is not None
    Rank(store, wanted).load()


# ---- turns


def test_a_rank_waits_until_fewer_load_than_may(store: ProcessStore, wanted: ObjectId) -> None:
    turns = store.store.paths.root / rank_load.TURNS
    rank = Rank(store, wanted)
    rank.model = SmallModel()
    with loading(turns, LoadTerms("another", slots=1, deadline_s=1.0)) as place:
        assert place.slot == 0
        thread = threading.Thread(target=lambda: rank.reload(CHECKPOINT, loaders=1))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive() and not rank.record.used, "there is one turn, and another has it"
    thread.join(30.0)
    assert rank.record.used == CHECKPOINT and rank.record.reasons == []
    assert len(rank.said) == 1 and "waits for its turn" in rank.said[0] and "another" in rank.said[0]


def test_a_rank_that_waits_too_long_loads_all_the_same_and_says_so(
    store: ProcessStore, wanted: ObjectId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_load, "TURN_S", 0.1)
    rank = Rank(store, wanted)
    rank.model = SmallModel()
    with loading(store.store.paths.root / rank_load.TURNS, LoadTerms("another", slots=1, deadline_s=1.0)):
        rank.reload(CHECKPOINT, loaders=1)
    assert rank.record.used == CHECKPOINT
    assert any("goes without a slot" in reason for reason in rank.record.reasons)
