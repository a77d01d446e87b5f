"""What the ranks of gangs do in tests; each function is called in a process of its own."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ebbtide.storage.checkpoints.dcp.gang_checkpoint import load_into, save_together
from ebbtide.storage.checkpoints.dcp.storage_reader import TrainingReader
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide.storage.checkpoints.state.about_json import About
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard as Part
from ebbtide.storage.checkpoints.state.rank_file import write_shards
from ebbtide.storage.errors import NoRoom
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Fill
from tests.platform.storage.checkpoints.runs import PIECE, CountedReads, make_run, make_transport, same
from tests.platform.storage.counted_transport import CountedTransport
from tests.platform.storage.failing_calls import CountedCalls


def say(**what: object) -> None:
    """Replaced by `gang_process`."""


def meet(rank: int, world: int, rendezvous: str) -> None:
    """Form the gang's group."""
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )


# name: (rows, columns, type, how it is sharded); uneven for 2 and 3 ranks
LAYOUT: dict[str, tuple[tuple[int, ...], torch.dtype, Any]] = {
    "rows": ((301, 33), torch.float32, Shard(0)),
    "columns": ((50, 301), torch.bfloat16, Shard(1)),
    "few rows": ((2, 5), torch.float32, Shard(0)),
    "one row": ((1, 2000), torch.float64, Shard(0)),
    "vector": ((1001,), torch.float8_e4m3fn, Shard(0)),
    "middle": ((4, 7, 60), torch.int16, Shard(1)),
    "replicated": ((70, 40), torch.float32, Replicate()),
    "plain": ((33, 9), torch.bfloat16, None),
    "scalar": ((), torch.float32, None),
    "empty": ((0, 3), torch.float32, Shard(0)),
}


def full_tensor(name: str, step: int) -> torch.Tensor:
    shape, dtype, _ = LAYOUT[name]
    torch.manual_seed(1000 * step + sorted(LAYOUT).index(name))
    count = dtype.itemsize
    for size in shape:
        count *= size
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).view(shape)


def sharded_state(step: int, *, blank: bool = False) -> dict[str, Any]:
    """The state of a gang at a step; ``blank``: of the same form, with other values."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors: dict[str, Any] = {}
    for name, (_, _, placement) in LAYOUT.items():
        full = full_tensor(name, step)
        full = torch.zeros_like(full) if blank else full
        tensors[name] = full if placement is None else _distributed(full, mesh, placement)
    return {
        "model": {key: tensors[key] for key in ("rows", "columns", "few rows", "one row", "plain")},
        "optimizer": {
            "state": {"0": {"exp_avg": tensors["replicated"], "vector": tensors["vector"]}, "1": [tensors["scalar"]]},
            "middle": tensors["middle"],
            "empty": tensors["empty"],
            "param_groups": [{"lr": 0.0 if blank else 0.1, "betas": None if blank else (0.9, 0.999), "params": [0, 1]}],
        },
        "sampler": {"seen": 0 if blank else step * 7, "name": "" if blank else "shuffled", "extra": None},
        "generators": (0,) if blank else (torch.arange(5), "mt19937"),
        "step": 0 if blank else step,
    }


def _distributed(full: torch.Tensor, mesh: Any, placement: Any) -> DTensor:
    """Each rank takes its part, since gloo cannot send every type."""
    return distribute_tensor(full, mesh, [placement], src_data_rank=None)


def is_right(state: dict[str, Any], step: int) -> bool:
    """Whether this rank's part of a loaded state is that of the step, to the bit."""
    return same(local(state), local(sharded_state(step)))


def local(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.to_local()
    if isinstance(value, dict):
        return {key: local(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(local, value))
    return value


def run_at(root: str, **how: Any) -> RunCheckpoints:
    return make_run(Path(root), **{"grace_s": -1.0, "keep": Retention(2), **how})


# ---- scenarios


def save(
    rank: int,
    world: int,
    root: str,
    rendezvous: str,
    epoch: int,
    steps: list[int],
    caching: bool = False,
    grace_s: float = -1.0,
) -> Any:
    """Save some steps, one after the other."""
    meet(rank, world, rendezvous)
    run = run_at(root, grace_s=grace_s)
    if rank == 0:
        run.begin_epoch(epoch)
    for step in steps:
        planner = DefaultSavePlanner(enable_plan_caching=caching)
        save_together(sharded_state(step), run, at=CheckpointId(epoch, step), note={"step": step}, planner=planner)
    run.settle()
    dist.barrier()
    return sorted(path.name for path in run.paths.checkpoint(CheckpointId(epoch, steps[-1])).glob("*.safetensors"))


def save_without_group(rank: int, world: int, root: str, epoch: int, step: int) -> list[str]:
    """Two phases over plain files: each rank writes some rows, and says so in a text; the first one commits."""
    run, place = run_at(root), Path(root)
    saving = run.saving(epoch, step)
    full = full_tensor("rows", step)
    if rank == 0:
        saving.begin(full.nbytes)
        (place / "begun").touch()
    wait_for(place / "begun")
    first, last = (len(full) * each // world for each in (rank, rank + 1))
    shards = [Part("rows", full[first:last], tuple(full.shape), (first, 0))]
    put(place / f"entry-{rank}", write_shards(saving.staging, rank, shards).to_json())
    if rank == 0:
        paths = [place / f"entry-{each}" for each in range(world)]
        entries = [RankEntry.from_json(wait_for(path)) for path in paths]
        saving.commit(entries, {"rows": {"$tensor": "rows"}, "step": step}, About(world, {}))
        put(place / "committed", str(saving.id))
    assert wait_for(place / "committed") == f"e{epoch}/step-{step}"
    with run.open(CheckpointId(epoch, step)) as opened:
        assert same(opened.read_state(), {"rows": full, "step": step})
    return sorted(path.name for path in run.paths.checkpoint(saving.id).iterdir())


def put(path: Path, text: str) -> None:
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def wait_for(path: Path) -> str:
    end_s = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return path.read_text()


def load(rank: int, world: int, root: str, rendezvous: str, stock: bool = False) -> dict[str, Any]:
    """Load the newest; how many bytes of tensors were read for it."""
    meet(rank, world, rendezvous)
    transport = CountedReads(make_transport())
    run = run_at(root, transport=transport)
    wanted = run.newest()
    assert wanted is not None
    state = sharded_state(wanted.step, blank=True)
    with run.open(wanted) as opened:
        if stock:
            state_dict_loader.load(state, storage_reader=TrainingReader(opened))
        else:
            load_into(state, opened)
    assert is_right(state, wanted.step), "what was loaded is not what was saved"
    return {"step": wanted.step, "bytes": transport.bytes_of(".safetensors")}


def load_alone(rank: int, world: int, root: str) -> int:
    """Read all of the state in one process without any group, as a nested dict and into plain tensors."""
    run = run_at(root)
    found = run.read_newest(lambda opened: opened.read_state())
    assert found is not None
    step, state = found.id.step, found.value
    for key in ("rows", "columns", "few rows", "one row", "plain"):
        assert same(state["model"][key], full_tensor(key, step)), key
    assert same(state["optimizer"]["state"]["1"], [full_tensor("scalar", step)])
    assert state["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]
    assert same(state["generators"], (torch.arange(5), "mt19937"))
    target = {"model": {"columns": torch.zeros(50, 301, dtype=torch.bfloat16)}, "step": 0}
    with run.open(found.id) as opened:
        load_into(target, opened)
    assert same(target, {"model": {"columns": full_tensor("columns", step)}, "step": step})
    return step


def save_and_break(
    rank: int,
    world: int,
    root: str,
    rendezvous: str,
    epoch: int,
    step: int,
    victim: int,
    before: int,
    code: int = 0,
    lasts: bool = False,
) -> dict[str, Any]:
    """Save; rank ``victim`` kills itself before its ``before``-th change, or that change fails with errno ``code``.

    If it ``lasts``, all changes after it fail too, but what removes.
    """

    def breaks(number: int, name: str) -> None:
        goes_on = lasts and number > before and name not in ("unlink", "rmdir")
        if rank == victim and (number == before or goes_on):
            if not code:
                os.kill(os.getpid(), signal.SIGKILL)
            if name in ("chunk", "file"):
                raise NoRoom("the transport found no room")
            raise OSError(code, os.strerror(code))

    meet(rank, world, rendezvous)
    state = sharded_state(step)
    calls = CountedCalls(breaks)
    run = run_at(root, transport=CountedTransport(calls, BufferPool(2, PIECE), end="file"), disk=Disk(calls))
    outcome = "committed"
    try:
        save_together(state, run, at=CheckpointId(epoch, step))
    except Exception as error:  # noqa: BLE001 - the outermost of a rank
        outcome = f"{type(error).__name__}: {error}"
    run.settle()
    return {"outcome": outcome, "changes": calls.count}


def look_and_save(rank: int, world: int, root: str, rendezvous: str, epoch: int, step: int) -> list[int]:
    """Load the newest, save another step, and load that; which steps were loaded."""
    meet(rank, world, rendezvous)
    run, found = run_at(root), []
    if rank == 0:
        run.begin_epoch(epoch)
    dist.barrier()
    for is_last in (False, True):
        wanted = run.newest()
        assert wanted is not None
        state = sharded_state(wanted.step, blank=True)
        with run.open(wanted) as opened:
            load_into(state, opened)
        assert is_right(state, wanted.step)
        found.append(wanted.step)
        if not is_last:
            save_together(sharded_state(step), run, at=CheckpointId(epoch, step))
    run.settle()
    dist.barrier()
    return found


def save_slowly(
    rank: int, world: int, root: str, rendezvous: str, steps: list[int], pause_at: str, go: str
) -> list[str]:
    """Save steps in epoch 1; in the first, in mid-write or before the rename, say so and wait for the file ``go``."""
    meet(rank, world, rendezvous)
    waited = False

    def pause(where: str) -> None:
        nonlocal waited
        if where == pause_at and not waited:
            waited = True
            say(event="paused", where=where)
            while not Path(go).exists():
                time.sleep(0.02)

    class SlowTransport(PosixTransport):
        def write(self, path: Path, size_bytes: int, fill: Fill, *, deadline_s: float, **_: Any) -> TransferReport:
            def filling(offset: int, memory: memoryview) -> None:
                if offset:
                    pause("in mid-write")
                fill(offset, memory)

            return super().write(path, size_bytes, filling, deadline_s=600)

    class SlowCalls(CountedCalls):
        def rename(self, src: Any, dst: Any) -> None:
            if Path(dst).name.startswith("step-"):
                pause("before the rename")
            super().rename(src, dst)

    run = run_at(root, transport=SlowTransport(BufferPool(2, PIECE), threads=1), disk=Disk(SlowCalls()))
    outcomes = []
    for step in steps:
        try:
            save_together(sharded_state(step), run, at=CheckpointId(1, step))
            outcomes.append("committed")
        except Exception as error:  # noqa: BLE001 - the outermost of a rank
            outcomes.append(type(error).__name__)
    run.settle()
    return outcomes


def fail_on_one_rank(rank: int, world: int, root: str, rendezvous: str, victim: int, how: str) -> str:
    """A save in which one rank has something that cannot be kept, or damage that only it reads."""
    meet(rank, world, rendezvous)
    run = run_at(root)
    try:
        if how == "save":
            state = sharded_state(5)
            if rank == victim:
                state["sampler"]["name"] = object()
            save_together(state, run, at=CheckpointId(1, 5))
        else:
            wanted = run.newest()
            assert wanted is not None
            with run.open(wanted) as opened:
                load_into(sharded_state(1, blank=True), opened)
    except Exception as error:  # noqa: BLE001 - the outermost of a rank
        return f"{type(error).__name__}: {error}"
    return "fine"
