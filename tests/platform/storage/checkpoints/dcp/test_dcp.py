"""PyTorch's own planners and readers on our writer and reader, in one process; gangs are in test_gang."""

import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from ebbtide.storage.checkpoints.dcp.gang_checkpoint import first_failure, load_into, save_together
from ebbtide.storage.checkpoints.dcp.storage_reader import TrainingReader, metadata_of
from ebbtide.storage.checkpoints.dcp.storage_writer import TrainingWriter
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_space import RESERVATION
from ebbtide.storage.errors import Corrupt, Refused, StorageError, TransferFailed
from tests.builders.checkpoints import commit_sharded, cut, every_type, flip, odd_tensors
from tests.platform.storage.checkpoints.runs import at, leftovers, make_run, same, state_at


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        yield


def save(run: RunCheckpoints, state: dict[str, Any], step: int = 1, **more: Any) -> None:
    writer = TrainingWriter(run.saving(1, step), note={"step": step})
    state_dict_saver.save(state, storage_writer=writer, no_dist=True, **more)


def test_what_pytorch_saves_is_read_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = state_at(3)
    state["optimizer"]["state"] = {"0": state["optimizer"]["state"][0]}  # PyTorch makes texts of all keys
    save(run, state, 3)
    found = run.read_newest(OpenCheckpoint.read_state)
    assert found is not None and same(found.value, state)
    [listed] = run.list()
    assert listed.about is not None and listed.about.note == {"step": 3}


def test_what_one_process_saved_in_one_piece_is_loaded_by_pytorch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(3), epoch=1, step=3)
    with run.open(at("e1/step-3")) as opened:
        state = state_at(9)
        state_dict_loader.load(state, storage_reader=TrainingReader(opened), no_dist=True)
        assert same(state, state_at(3))
        whole = _load_state_dict_from_keys({"model", "scheduler"}, storage_reader=TrainingReader(opened))
        assert same(whole["model"], state_at(3)["model"]) and whole["scheduler"] == state_at(3)["scheduler"]


def test_every_type_and_odd_shape_goes_both_ways(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = {**every_type(), **odd_tensors()}
    save(run, state)
    with run.open(at("e1/step-1")) as opened:
        blank = {name: torch.zeros_like(tensor.detach().resolve_conj().contiguous()) for name, tensor in state.items()}
        load_into(blank, opened)
    for name, tensor in state.items():
        bits = (torch.uint8, torch.int16, torch.int32, torch.int64)[tensor.itemsize.bit_length() - 1]
        expected = tensor.detach().resolve_conj().resolve_neg().contiguous()
        assert torch.equal(blank[name].view(bits), expected.view(bits)), name


def test_targets_of_any_stride_and_type_are_filled(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    weight = torch.randn(30, 50)
    run.save({"w": weight, "v": weight}, epoch=1, step=1)
    base = torch.zeros(50, 60)
    state = {"w": base[:, ::2].t(), "v": torch.zeros(30, 50, dtype=torch.float64)}
    with run.open(at("e1/step-1")) as opened:
        load_into(state, opened)
    assert same(base[:, ::2].t().contiguous(), weight) and (base[:, 1::2] == 0).all()
    assert same(state["v"], weight.double())


def test_objects_that_have_a_state_take_it_back(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    save(run, {"model": model, "optimizer": optimizer})
    torch.manual_seed(1)
    other = nn.Linear(4, 3)
    again = torch.optim.AdamW(other.parameters(), lr=0.5)
    other(torch.ones(4)).sum().backward()
    again.step()
    with run.open(at("e1/step-1")) as opened:
        load_into({"model": other, "optimizer": again}, opened)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(again.state_dict()["state"], optimizer.state_dict()["state"])
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_no_file_holds_a_pickle(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    save(run, {"x": torch.ones(3), "betas": (0.9, 0.99), "tensors": (torch.zeros(2), [torch.ones(1)]), "b": b"bytes"})
    for path in run.paths.directory.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            with pytest.raises(Exception, match=r".*"):
                pickle.loads(content)
            assert b"torch" not in content and not content.startswith(b"PK")
    with run.open(at("e1/step-1")) as opened:
        state: dict[str, Any] = {"x": torch.zeros(3), "betas": None, "tensors": (0,), "b": b""}
        load_into(state, opened)
    assert same(state["tensors"], (torch.zeros(2), [torch.ones(1)]))
    assert (state["betas"], state["b"]) == ((0.9, 0.99), b"bytes")


def test_stock_pytorch_reads_the_files_as_safetensors(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    full = torch.randn(10, 6)
    commit_sharded(run, 1, [[shard] for shard in cut("w", full, 0, [3, 7])])
    reader = HuggingFaceStorageReader(str(run.paths.checkpoint(at("e1/step-1"))))
    state = {"w": torch.zeros(10, 6)}
    state_dict_loader.load(state, storage_reader=reader, no_dist=True)
    assert same(state["w"], full)


def test_two_names_for_one_memory_come_back_under_both(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    weight = torch.randn(64, 64)
    save(run, {"a": weight, "b": weight, "c": [weight.t()]})
    with run.open(at("e1/step-1")) as opened:
        state = {"a": torch.zeros(64, 64), "b": torch.zeros(64, 64), "c": [torch.zeros(64, 64)]}
        load_into(state, opened)
        assert same(state, {"a": weight, "b": weight, "c": [weight.t()]})
        assert opened.size_bytes < 2.6 * weight.nbytes


@pytest.mark.proves("a gang of one that fails leaves nothing")
def test_a_gang_of_one_needs_no_group(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    planner = DefaultSavePlanner()
    state = {"model": nn.Linear(3, 2), "step": 4, "tied": (torch.ones(2), 1)}
    assert save_together(state, run, at=at("e1/step-4"), note={"seed": 1}, planner=planner) == at("e1/step-4")
    assert planner.state_dict == {}
    run.settle()
    found = run.read_newest(OpenCheckpoint.read_state)
    assert found is not None and same(found.value["model"], dict(state["model"].state_dict()))  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="x is a set"):
        save_together({"x": {1}}, run, at=at("e1/step-5"))
    assert leftovers(run) == []


# ---- what is refused


def refused(run: RunCheckpoints, state: dict[str, Any], **more: Any) -> str:
    with pytest.raises(CheckpointException) as told:
        save(run, state, **more)
    error = first_failure(told.value)
    assert isinstance(error, Refused)
    return str(error)


def test_an_object_of_an_author_is_refused_by_name(tmp_path: Path) -> None:
    assert "model.custom is a set" in refused(make_run(tmp_path), {"model": {"custom": {1}}})


@pytest.mark.proves("tensors of an object that would hide others are refused")
def test_tensors_of_an_object_that_collide_with_others_are_refused(tmp_path: Path) -> None:
    state = {"a": (torch.ones(1),), "a.0": torch.zeros(1)}
    assert "are called 'a.0'" in refused(make_run(tmp_path), state)


def test_room_for_plans_that_pytorch_has_cached_is_that_of_the_last_save(tmp_path: Path) -> None:
    run, planned = make_run(tmp_path), dict[int, int]()
    planner = DefaultSavePlanner()
    planner.set_up_planner({"x": torch.zeros(50_000)}, is_coordinator=True)
    reserved = []
    for plans in (
        [planner.create_local_plan(), SavePlan([])],
        [SavePlan([], usable=False), SavePlan([], usable=False)],
    ):
        saving = run.saving(1, 1)
        TrainingWriter(saving, planned=planned).prepare_global_plan(plans)
        reserved.append(int((run.paths.work(saving.id) / RESERVATION).read_text()))
    assert reserved[0] == reserved[1] > 200_000
    assert planned == {0: 200_000, 1: 0}


def test_a_planner_that_hides_its_objects_is_refused(tmp_path: Path) -> None:
    class Hiding(SavePlanner):
        def __init__(self) -> None:
            self._inner = DefaultSavePlanner()

        def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
            self._inner.set_up_planner(state_dict, storage_meta, is_coordinator)

        def create_local_plan(self) -> Any:
            return self._inner.create_local_plan()

        def create_global_plan(self, all_plans: Any) -> Any:
            return self._inner.create_global_plan(all_plans)

        def finish_plan(self, new_plan: Any) -> Any:
            return self._inner.finish_plan(new_plan)

        def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
            return self._inner.resolve_data(write_item)

    assert "no lookup_object" in refused(make_run(tmp_path), {"n": 3}, planner=Hiding())
    save(make_run(tmp_path), {"x": torch.ones(2)}, planner=Hiding())


def test_a_name_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(Refused, match="no checkpoint_id"):
        save(run, {}, checkpoint_id="somewhere")
    run.save({}, epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened, pytest.raises(Refused, match="no checkpoint_id"):
        state_dict_loader.load({}, storage_reader=TrainingReader(opened), checkpoint_id="x", no_dist=True)
    assert not TrainingWriter.validate_checkpoint_id("x") and not TrainingReader.validate_checkpoint_id("x")


@pytest.mark.proves("ranks come together for a commit")
def test_ranks_that_do_not_come_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises((Refused, CheckpointException), match="use_collectives"):
        save(make_run(tmp_path), {"x": torch.ones(1)}, use_collectives=False)


def test_a_state_that_does_not_fit_is_told_by_pytorch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        with pytest.raises(RuntimeError, match="Missing key"):
            load_into({"other": torch.ones(1)}, opened)
        with pytest.raises(ValueError, match="Size mismatch"):
            load_into({"model": {"bias": torch.ones(8)}}, opened)
        load_into({"other": 1}, opened, planner=DefaultLoadPlanner(allow_partial_load=True))


def test_two_parts_of_one_name_can_be_read_as_a_whole_only(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    run.save(state, epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        assert same(opened.read_state(), state)
        with pytest.raises(Refused, match=r"called 'a\.b'"):
            metadata_of(opened)


def test_damage_is_told_as_such_through_pytorch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(state_at(1), epoch=1, step=1)
    flip(run.paths.checkpoint(at("e1/step-1")) / "rank0.safetensors", 3 * 4096)
    with run.open(at("e1/step-1")) as opened:
        with pytest.raises(Corrupt, match=r"rank0\.safetensors at byte 12288"):
            load_into(state_at(9), opened)
        with pytest.raises(CheckpointException) as told:
            state_dict_loader.load(state_at(9), storage_reader=TrainingReader(opened), no_dist=True)
        assert isinstance(first_failure(told.value), Corrupt)


def test_our_errors_come_before_others_and_those_of_lower_ranks_first() -> None:
    def failed(*errors: BaseException) -> BaseException:
        wrapped = {rank: (error, None) for rank, error in enumerate(errors)}
        return first_failure(CheckpointException("write", wrapped))  # type: ignore[arg-type]

    first, second = TransferFailed("read", "a", errno=5), TransferFailed("read", "b", errno=5)
    assert failed(ValueError("x"), first, second) is first
    assert isinstance(failed(ValueError("x"), KeyError("y")), ValueError)


@pytest.mark.parametrize(
    "error",
    [
        TransferFailed("read", "a", errno=5, offset=7),
        Corrupt("what", Path("b"), offset=9),
        Refused("no"),
    ],
)
def test_our_errors_survive_the_way_between_ranks(error: StorageError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_the_last_of_two_writers_of_one_step_finds_it_committed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = {**state_at(1), "optimizer": {}}
    save(run, state)
    save(run, {"x": 1})
    found = run.read_newest(OpenCheckpoint.read_state)
    assert found is not None and found.value["step"] == 1
