"""The tiny job split over its ranks by FSDP2, and the same training without a session: torch's own full state dict."""

import gc
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import default_collate

import ebbtide_train
from ebbtide_train.session.loop.samples import sample_ids, share
from ebbtide_train.session.state import rng
from tests.train_jobs import tiny
from tests.train_jobs.exact.courses import inet_sockets

GLOBAL_BATCH = 7  # shares of two and three workers are uneven
MICRO_BATCH = 2  # at three workers one rank has a pass more than the others have samples for
DROPOUT = 0.2
WIDTH = 20  # does not divide by three


class Net(tiny.Net):
    """With a parameter of which the third rank has nothing, and a buffer that follows the rank's own samples."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__(width=WIDTH, dropout=DROPOUT)
        self.gain = nn.Parameter(torch.tensor([1.0, 0.1]))
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.float().mean() / 500)
        return super().forward(x) * self.gain[0] * (1 + self.mean) + self.gain[1]


Parts = tuple[Net, torch.optim.Optimizer, CosineAnnealingLR]


def build(mesh: DeviceMesh | None) -> Parts:
    """Without a mesh it is not split."""
    model = Net()
    if mesh is not None:
        for layer in model.hidden:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, optimizer, CosineAnnealingLR(optimizer, 50)


def full_bits(model: nn.Module, optimizer: torch.optim.Optimizer, *, buffers: bool = True) -> str:
    """Of all parameters, optimizer state and this rank's buffers, put together from all ranks; a collective."""
    named: dict[str, torch.Tensor] = {f"p {name}": parameter for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        named |= {f"s {name} {key}": value for key, value in state.items()}
    named |= {f"b {name}": buffer for name, buffer in model.named_buffers() if buffers}
    sha = hashlib.sha256()
    for name, tensor in named.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        sha.update(f"{name} {tuple(whole.shape)} ".encode() + whole.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def train(args: Mapping[str, object]) -> None:
    session = ebbtide_train.current_session()
    notes = session.settings.run_dir
    split = session.world > 1 or bool(args.get("split_alone"))
    model, optimizer, scheduler = build(session.mesh() if split else None)
    prepared = session.prepare(model, optimizer, scheduler)
    if session.finished:
        begun = full_bits(model, optimizer, buffers=False)
        (notes / f"begun-{session.finished}-{session.world}-{session.rank}").write_text(begun)
    dataset = tiny.Numbers()
    for step in session.steps(total=int(str(args["steps"]))):
        for batch in step.batches(dataset):
            step.backward(tiny.loss_of(prepared(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if args.get("look"):
            with torch.no_grad():
                prepared(dataset[0][0][None])  # leaves parameters whole
        else:  # of buffers the first rank's count, when the step has ended
            ended = full_bits(model, optimizer, buffers=False)
            (notes / f"ended-{step.index + 1}-{session.rank}").write_text(ended)
    (notes / f"digest-{session.rank}").write_text(full_bits(model, optimizer))


def by_torch(folder: Path, segments: Sequence[tuple[int, int, int]], rank: int) -> None:
    """One rank of all segments (first step, one past the last, world) without a session; its losses in files."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for number, (first, last, world) in enumerate(segments):
        if rank < world:
            _segment(folder, number, first, last, rank, world)


def _segment(folder: Path, number: int, first: int, last: int, rank: int, world: int) -> None:
    while number and not (folder / f"state-{first}.pt").exists():
        time.sleep(0.01)
    meeting = f"file://{folder}/meeting-{number}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    rng.seed_job(0)
    model, optimizer, scheduler = build(init_device_mesh("cpu", (world,)) if world > 1 else None)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if number:
        state = torch.load(folder / f"state-{first}.pt", weights_only=True)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )
        scheduler.load_state_dict(state["scheduler"])
    rng.seed_rank(0, step=first, rank=rank)
    losses = []
    for step in range(first, last):
        losses.append(_plain_step(model, step, rank, world).hex())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        for buffer in model.buffers():  # as with DDP
            dist.broadcast(buffer, src=0)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    if rank == 0:
        whole = {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler.state_dict()}
        torch.save(whole, folder / "new.pt")
        (folder / "new.pt").rename(folder / f"state-{last}.pt")
    (folder / f"losses-{first}-{rank}").write_text(" ".join(losses))
    dist.barrier()
    dist.destroy_process_group()


def _plain_step(model: Net, step: int, rank: int, world: int) -> float:
    mine = share(sample_ids(step, seed=0, length=97, global_batch=GLOBAL_BATCH), rank=rank, world=world)
    largest = -(-GLOBAL_BATCH // world)
    passes = -(-largest // MICRO_BATCH)
    dataset, total = tiny.Numbers(), 0.0
    for number in range(passes):
        ids = share(mine, rank=number, world=passes)
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(number == passes - 1)
        x, y = default_collate([dataset[index] for index in ids or mine[-1:]])
        loss = tiny.loss_of(model(x), y)
        total += loss.item() * len(ids)
        (loss * (len(ids) * world / GLOBAL_BATCH)).backward()  # type: ignore[no-untyped-call]
    return total / len(mine)


def keeps_its_sockets(folder: Path, rank: int, world: int) -> None:
    """What FSDP2 holds on to when its group is destroyed: counts of sockets before and after, in a file."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    model, _, _ = build(init_device_mesh("cpu", (world,)))
    x = torch.zeros((1, 11), dtype=torch.int64)
    tiny.loss_of(model(x), x).backward()  # type: ignore[no-untyped-call]
    before = len(inet_sockets(os.getpid()))
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    after = len(inet_sockets(os.getpid()))
    tiny.loss_of(model(x), x).backward()  # type: ignore[no-untyped-call]  # over the group that was destroyed
    (folder / f"counted-{rank}").write_text(f"{before} {after}")
