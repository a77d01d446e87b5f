"""The demo's last act: a person puts the job aside, and every process that knows of it on its node is killed.

What it had is in host memory by then, and on the shared filesystem a moment later, written in the background. So it
goes on from the very step where it was parked.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import pool_run
from benchmarks.pool_run import RunFailed, Status, all_training, ebbtide, job_of
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_train.session.step_log import gang_lines

PARK_S = 60.0  # a step, a copy to host memory: well below a second on a quiet machine
BACK_S = 180.0  # a new gang on all slots: 15 s on a quiet machine
LOOK_S = 0.02
ASIDE = ("parked", "waiting")
AGENT = "ray::NodeAgent"


@dataclass(frozen=True, slots=True)
class ParkedAndKilled:
    """What became of it."""

    parked_at_step: int
    durable_after_s: float  # from then on, written in the background while the slots were free already
    ranks_killed: int
    agents_killed: int
    went_on_at_step: int

    def as_json(self) -> dict[str, Any]:
        """For the summary."""
        return asdict(self)


def park_and_kill(record: ClusterRecord, job: str, *, within_s: float = math.inf) -> ParkedAndKilled:
    """Park the job by hand, kill its ranks and its node's agent, let it go on.

    Args:
        within_s: seconds for all of it together.

    Raises:
        RunFailed: a step did not come about in its time.
    """
    until_s = time.monotonic() + within_s

    def wait(what: str, limit_s: float, holds: Callable[[Status], bool], *, every_s: float = 0.2) -> None:
        pool_run.wait(what, max(1.0, min(limit_s, until_s - time.monotonic())), holds, every_s=every_s)

    ebbtide("park", job, "--reason", "the demo's last act", "--no-wait")  # it would wait for the spill to begin, too
    wait("it is aside", PARK_S, lambda status: job_of(status, job).get("state") in ASIDE, every_s=LOOK_S)
    parked_s, parked = time.monotonic(), _look(job)
    if parked["state"] != "parked":
        raise RunFailed(f"the job was to park in place, and is {parked['state']}: {parked['waits']}")
    step = int(parked["step"])
    spilled = "what is parked has been spilled"
    wait(spilled, PARK_S, lambda status: job_of(status, job).get("durable_step", 0) >= step, every_s=LOOK_S)
    durable_s = time.monotonic() - parked_s
    ranks = [int(pid) for pid in parked["pids"].values()]
    agents = _agents(record)
    killed_s = time.time()
    for pid in (*ranks, *agents):
        os.kill(pid, signal.SIGKILL)
    print(f"          parked at step {step}; killed its {len(ranks)} ranks and {len(agents)} node agent", flush=True)
    wait("its death is known", BACK_S, lambda status: job_of(status, job).get("state") == "waiting")
    ebbtide("resume", job, "--no-wait")
    wait("it trains on all slots again", BACK_S, lambda status: all_training(status, job))
    later = [gang for gang in gang_lines(Path(record.shared_dir) / "train" / job) if gang.t > killed_s]
    return ParkedAndKilled(step, round(durable_s, 2), len(ranks), len(agents), later[0].restored)


def _look(job: str) -> dict[str, Any]:
    return job_of(ArbiterLink().call("status", timeout_s=10.0) or {}, job)


def _agents(record: ClusterRecord) -> list[int]:
    """The node agents of this cluster, by its own processes: others may run on this machine."""
    found = []
    for pid, _ in record.pids:
        try:
            children = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        for child in children:
            try:
                if " ".join(child.cmdline()).startswith(AGENT):
                    found.append(child.pid)
            except psutil.NoSuchProcess:
                continue
    return sorted(set(found))
