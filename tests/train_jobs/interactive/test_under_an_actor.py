"""A training under a Ray actor is put into an image and goes on bit for bit, and the actor lives all the time.

The actor is what a pool's worker is to a session: it has the keeper in it (see `interactive_rank`).
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from ebbtide.client.messages import DesiredState
from ebbtide.helper.client import Helper
from ebbtide.helper.errors import Refused
from ebbtide.system.process import is_alive, started_ticks
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from tests.criu import criu_or_skip
from tests.train_jobs.conftest import FakePool
from tests.train_jobs.interactive.helped import helped
from tests.train_jobs.interactive.kept import Kept, lease, until

pytestmark = [pytest.mark.ray, pytest.mark.shares_cluster, pytest.mark.timeout(200)]
TRAINING = Path(__file__).parents[2] / "platform" / "helper" / "training.py"
STEPS = 300


class Keeping:
    """An actor with a keeper in it. Each method answers at once."""

    def __init__(self, root: str, socket: str, command: list[str]) -> None:
        self._kept = Kept(Path(root), command, snapshots=HelperSnapshots(Helper(Path(socket)), "s"))
        self._kept.start()

    def pid(self) -> int:
        return os.getpid()

    def want(self, want: str, epoch: int = 0) -> int:
        """Give an order; its number."""
        return self._kept.gate.want(DesiredState(want), lease(epoch) if epoch else None)

    def stands(self) -> dict[str, Any]:
        """Where the session is; what kept it there, if anything did."""
        return {
            "state": self._kept.keeper.state.value,
            "heard": self._kept.gate.heard(),
            "refused": self._kept.gate.reports[-1].park_refused if self._kept.gate.reports else "",
            "error": repr(self._kept.error),
            "verdict": self._kept.verdict.end.value if self._kept.verdict is not None else "",
            "leader": self._kept.leader().pid,
            "held": self._kept.holder() is not None,
        }


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def opened(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_the_training_is_dumped_and_goes_on_bit_for_bit_while_its_actor_answers(
    fake_pool: FakePool, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    criu, helpers, out = criu_or_skip().path, tmp_path / "helper", tmp_path / "parked"
    helpers.mkdir(mode=0o700)
    command = [sys.executable, str(TRAINING), str(tmp_path), str(STEPS), "2"]
    with helped(helpers, criu) as helper:
        actor = ray.remote(Keeping).options(num_cpus=0).remote(str(tmp_path), str(helper.socket), command)
        try:
            worker = ask(actor, "pid")
            began = started_ticks(worker)
            assert began is not None
            await_it(actor, lambda stands: stands["state"] == "running" and lines(out) >= 20)
            leader = ask(actor, "stands")["leader"]
            assert os.getsid(leader) == leader != os.getsid(worker)
            assert not [target for target in opened(leader) if "socket:" in target or "pipe:" in target]
            for epoch in (2, 3):
                number = ask(actor, "want", "park")
                await_it(actor, lambda stands, n=number: stands["heard"] >= n and stands["state"] == "parked")  # type: ignore[misc]
                assert not ask(actor, "stands")["held"] and not Path(f"/proc/{leader}").exists()
                done = lines(out)
                assert 20 <= done < STEPS - 20
                number = ask(actor, "want", "run", epoch)
                await_it(actor, lambda stands, d=done: stands["state"] == "running" and lines(out) >= d + 20)  # type: ignore[misc]
                assert ask(actor, "stands")["leader"] == leader, "with the pid that it had"
            await_it(actor, lambda stands: stands["verdict"] == "finished")
            assert ask(actor, "pid") == worker and is_alive(worker, began), "one actor, from the first step to the last"
            # What is done to its training cannot be done to the actor itself: it is connected to its raylet.
            helper.client.register("worker", worker, began)
            with pytest.raises(Refused, match="outside its tree"):
                helper.client.dump("worker", tmp_path / "worker")
            assert ask(actor, "pid") == worker
        finally:
            ray.kill(actor)
    for rank in ("", "-1"):
        assert (tmp_path / f"parked{rank}").read_bytes() == (tmp_path / f"undisturbed{rank}").read_bytes()


def ask(actor: Any, method: str, *given: object) -> Any:
    return ray.get(getattr(actor, method).remote(*given), timeout=30)


def await_it(actor: Any, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Ask the actor again and again: it answers at any time, whatever is done to its session."""
    until(lambda: condition(ask(actor, "stands")), lambda: str(ask(actor, "stands")), timeout_s=90.0)
