"""Saving and loading checkpoints, beside older ones that must outlive whatever goes wrong; see ``store_trials``."""

from pathlib import Path
from typing import Any

import torch

from ebbtide.storage.checkpoints.dcp.gang_checkpoint import load_into, save_together
from ebbtide.storage.checkpoints.manager.checkpoint_manager import IfCorrupt, RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.manager.verification import verify
from tests.platform.storage.checkpoints.runs import at, leftovers, make_run, make_transport, same
from tests.platform.storage.shim.store_trials import Trial, evict, lengthen


def state_at(step: int, *, rows: int = 60) -> dict[str, Any]:
    """What a rank would give to ``torch.distributed.checkpoint``: some 30 KiB, several chunks, plain data between."""
    torch.manual_seed(step)
    return {
        "model": {"weight": torch.randn(rows, 129), "bias": torch.randn(7).bfloat16()},
        "optimizer": {"exp_avg": torch.randn(3, 33), "lr": 1e-3},
        "step": step,
    }


class OnCheckpoints(Trial):
    """Of a run that has saved something."""

    steps: tuple[int, ...] = (1,)

    @classmethod
    def prepare(cls, place: Path) -> None:
        run = make_run(place / "store")
        for step in cls.steps:
            save_together(state_at(step), run, at=at(f"e1/step-{step}"))
            run.settle()

    def run(self) -> RunCheckpoints:
        """As a gang has it."""
        return make_run(self.root, transport=make_transport())

    def check(self, *, done: bool) -> bool:
        run = make_run(self.root)
        listed = run.list()
        assert [one.problem for one in listed if one.problem] == []
        for one in listed:
            assert (found := verify(run, one.id)) == [], f"a damaged checkpoint is committed: {found}"
        step = step_read(run)
        assert step in ([2] if done else [1, 2]), f"step {step} is read"
        return step == 2

    def left(self) -> list[str]:
        return leftovers(make_run(self.root))


def step_read(run: RunCheckpoints, *, if_corrupt: IfCorrupt = IfCorrupt.RAISE) -> int:
    """The step of the newest checkpoint, after loading it into a state of the same form."""

    def fill(opened: OpenCheckpoint) -> dict[str, Any]:
        state = state_at(99)
        load_into(state, opened)
        return state

    found = run.read_newest(fill, if_corrupt=if_corrupt)
    assert found is not None, "it is gone"
    assert same(found.value, state_at(found.id.step)), "bytes"
    return found.id.step


class Save(OnCheckpoints):
    """A gang of one saves its shards by the writer for ``torch.distributed.checkpoint``."""

    def act(self) -> None:
        run = self.run()
        save_together(state_at(2), run, at=at("e1/step-2"))
        run.settle()


class Resume(OnCheckpoints):
    """A gang of one loads the newest checkpoint, not from the page cache."""

    steps = (1, 2)

    def __init__(self, place: Path, *, shared_leases: bool = False) -> None:
        super().__init__(place, shared_leases=shared_leases)
        evict(self.root)

    def act(self) -> None:
        assert step_read(self.run()) == 2

    def check(self, *, done: bool) -> bool:
        """Nothing was to change."""
        return done

    def heal(self, template: Path) -> None:
        lengthen(self.place, template)


TRIALS: dict[str, type[Trial]] = {"save": Save, "resume": Resume}
