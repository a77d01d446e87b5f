"""A job that is split over its ranks trains on while its checkpoint is written, whatever becomes of that."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ebbtide.client.messages import DesiredState
from ebbtide.storage.checkpoints.manager.host_staging import HostCopies
from ebbtide.storage.checkpoints.state.rank_file import write_shards
from ebbtide_train.session.checkpoints import durability, sharded_checkpoint
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.verification.control_run import GangPlan
from tests.train_jobs import gangs, tiny_sharded

pytestmark = pytest.mark.timeout(200)
Main = Callable[[GangPlan, int, Mapping[int, DesiredState | Away]], None]
STEPS = 60


def plan(run_dir: Path, *, steps: int = STEPS) -> GangPlan:
    return gangs.plan_of(
        run_dir,
        world=2,
        steps=steps,
        train="tests.train_jobs.tiny_sharded:train",
        global_batch=tiny_sharded.GLOBAL_BATCH,
        options={"micro_batch_max": tiny_sharded.MICRO_BATCH, "checkpoint_every_s": 0.02},
    )


def hanging(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """Rank 1's shared directory hangs until the test lets it go on."""

    def hang(*given: Any) -> Any:
        while not (Path(plan.run_dir) / "go").exists():
            time.sleep(0.01)
        return write_shards(*given)

    with mock.patch.object(sharded_checkpoint, "write_shards", hang if rank else write_shards):
        gangs.rank_main(plan, rank, wants)


def without_memory(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """Rank 1 has no memory for its first copy, and no thread for its second one."""
    stage, start, made = HostCopies.stage, durability.Durability._start, [0]

    def staged(self: HostCopies, state: Mapping[str, Any]) -> Any:
        made[0] += 1
        if made[0] == 1:
            raise MemoryError("none left")
        return stage(self, state)

    def started(self: durability.Durability, *given: Any) -> None:
        if made[0] == 2:
            raise RuntimeError("can't start new thread")
        start(self, *given)

    if rank == 0:
        return gangs.rank_main(plan, rank, wants)
    with mock.patch.object(HostCopies, "stage", staged), mock.patch.object(durability.Durability, "_start", started):
        gangs.rank_main(plan, rank, wants)


def test_steps_go_on_while_the_shared_directory_hangs_and_it_is_durable_afterwards(tmp_path: Path) -> None:
    one = plan(tmp_path / "job")
    processes = gangs.start(one, {}, hanging)
    try:
        gangs.wait_until(lambda: len(gangs.lines(tmp_path / "job")) >= 2 * 30, what="thirty steps", timeout_s=60.0)
        assert CheckpointStore(tmp_path / "job").newest() is None
        assert all("durable=0" in line for line in gangs.reports(one))
    finally:
        (tmp_path / "job" / "go").touch()
        gangs.join(processes)
    newest = CheckpointStore(tmp_path / "job").newest()
    assert newest is not None and newest.step == STEPS
    gangs.run(plan(tmp_path / "undisturbed"))
    assert gangs.digests(tmp_path / "job", 2) == gangs.digests(tmp_path / "undisturbed", 2)


def test_what_is_written_is_as_of_the_step_and_not_as_of_the_write(tmp_path: Path) -> None:
    """The ranks train on and change all that is copied before any of it is written."""
    one = plan(tmp_path / "job")
    processes = gangs.start(one, {}, hanging)
    gangs.wait_until(lambda: len(gangs.lines(tmp_path / "job")) >= 2 * 10, what="ten steps", timeout_s=60.0)
    (tmp_path / "job" / "go").touch()
    store = CheckpointStore(tmp_path / "job")
    gangs.wait_until(lambda: store.newest() is not None, what="a checkpoint", timeout_s=60.0)
    gangs.kill(processes)
    newest = store.newest()
    assert newest is not None and newest.step < STEPS
    gangs.run(gangs.stopping(plan(tmp_path / "job"), epoch=2))
    for rank in range(2):
        begun = (tmp_path / "job" / f"begun-{newest.step}-2-{rank}").read_text()
        assert begun == (tmp_path / "job" / f"ended-{newest.step}-{rank}").read_text()


def test_a_rank_without_memory_or_threads_costs_one_checkpoint_and_no_step(tmp_path: Path) -> None:
    one = plan(tmp_path / "job")
    gangs.run(one, {}, without_memory)
    newest = CheckpointStore(tmp_path / "job").newest()
    assert newest is not None and newest.step == STEPS
    durable = [int(line.split("durable=")[1].split()[0]) for line in gangs.reports(one)]
    assert any(0 < step < STEPS for step in durable), "a later periodic one went well"


def test_a_group_beside_another_has_its_own_order_of_rounds(tmp_path: Path) -> None:
    gangs.run(gangs.plan_of(tmp_path, world=2), {}, two_groups)
    assert [(tmp_path / f"said-{rank}").read_text() for rank in range(2)] == ["[2] [1]"] * 2


def two_groups(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    """Each rank uses its two groups in another order."""
    group = Group.meet(
        rank=rank, world=2, device=torch.device("cpu"), rendezvous=Path(plan.run_dir) / "meeting", timeout_s=60.0
    )
    beside, found = group.beside(), list[int]()
    thread = threading.Thread(target=lambda: found.extend(beside.max_of([rank])))
    if rank:
        mine = group.max_of([2])
        thread.start()
    else:
        thread.start()
        mine = group.max_of([1])
    thread.join()
    (Path(plan.run_dir) / f"said-{rank}").write_text(f"{mine} {found}")
    group.destroy()
