"""A job's driver as a user would write it; run as a program by test_pool_trainer.py.

usage: pool_driver.py NAME ARGS SETTINGS   (both JSON)
"""

import json
import sys
import time
from collections.abc import Mapping

import ebbtide_train
from ebbtide_train.pool_trainer import PoolTrainer


def train(args: Mapping[str, object]) -> None:
    from tests.train_jobs import tiny

    session = ebbtide_train.current_session()
    model, optimizer, scheduler, dataset, loss_fn = tiny.build(args)
    model = session.prepare(model, optimizer, scheduler)
    for step in session.steps(total=int(str(args["steps"]))):
        for batch in step.batches(dataset):
            step.backward(loss_fn(model(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step.index >= int(str(args.get("raise_at", 10**9))):
            raise RuntimeError("the author's own mistake")
        time.sleep(float(str(args.get("step_s", 0.02))))


if __name__ == "__main__":
    PoolTrainer(train, args=json.loads(sys.argv[2]), name=sys.argv[1], **json.loads(sys.argv[3])).fit()
    print("fit returned")
