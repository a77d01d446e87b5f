"""A job's driver as a user would write it; run as a program by test_pool_trainer.py.

usage: pool_driver.py NAME ARGS SETTINGS   (both JSON)
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ray

import ebbtide_train
from ebbtide_train.pool_trainer import PoolTrainer
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.errors import CheckpointFailed
from ebbtide_train.session.parking.leftover_regions import Taken
from ebbtide_train.session.parking.takeover import publish_region
from ebbtide_train.worker import node_memory


def hinder(full: Path) -> None:
    """From now on nothing is committed by this process while there is a file ``full``.

    Who publishes what a gang has left behind writes there on which node it did.
    """
    publish = CheckpointStore.publish

    def refusing(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        if full.exists():
            raise CheckpointFailed("[Errno 28] No space left on device")
        publish(self, state, ref)

    def noting(path: Path, run_dir: Path, *, keep: int) -> Taken:
        full.with_suffix(".published").write_text(ray.get_runtime_context().get_node_id())
        return publish_region(path, run_dir, keep=keep)

    CheckpointStore.publish = refusing  # type: ignore[method-assign]
    node_memory.publish_region = noting  # type: ignore[attr-defined]


def train(args: Mapping[str, object]) -> None:
    from tests.train_jobs import tiny

    if "full" in args:
        hinder(Path(str(args["full"])))
    session = ebbtide_train.current_session()
    model, optimizer, scheduler, dataset, loss_fn = tiny.build(args)
    model = session.prepare(model, optimizer, scheduler)
    if args.get("raise_early") == session.rank:
        raise KeyError("mine")
    for step in session.steps(total=int(str(args["steps"]))):
        for batch in step.batches(dataset):
            step.backward(loss_fn(model(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step.index >= int(str(args.get("raise_at", 10**9))):
            raise RuntimeError("the author's own mistake")
        time.sleep(float(str(args.get("step_s", 0.02))))


def train_returns(args: Mapping[str, object]) -> int:
    return 3


def train_exits(args: Mapping[str, object]) -> None:
    sys.exit(3)


ODD: Mapping[str, Callable[..., object]] = {"returns": train_returns, "exits": train_exits}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    chosen = ODD.get(given.get("train"), train)
    fresh = bool(given.get("fresh"))
    PoolTrainer(chosen, args=given, fresh=fresh, name=sys.argv[1], **json.loads(sys.argv[3])).fit()
    print("fit returned")
