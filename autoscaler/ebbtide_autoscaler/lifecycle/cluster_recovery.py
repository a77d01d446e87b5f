"""When a pool's cluster is lost as a whole: ending what it left behind, and saying what will come back.

Nothing of Ray survives the loss of a GCS without Redis. What is on the shared directory does: a new cluster, a new
arbiter that replays the ledger, and from there on the usual ways lead back: nodes of the old cluster are lost, their
seats and gangs with them, endpoints start replicas again as demand asks, and jobs whose submission is archived are
submitted again.
"""

import os
import time
from pathlib import Path

import psutil

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.ledger.errors import LedgerError
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide.system.process import await_end, kill_exactly, started_ticks
from ebbtide_autoscaler.cluster.cluster_processes import MARK
from ebbtide_autoscaler.journal.records import recover

STARTED_BY_RAYLET = "RAY_RAYLET_PID"  # set in every worker, and in what a worker starts; never in a person's shell
OF_A_JOB = "EBBTIDE_RAY_ADDRESS"  # set for drivers that `ebbtide submit` started

LAST_BREATH_S = 10.0  # a process with many GB of memory takes a second or so to give it back; one in a device, longer


def left_behind(record: ClusterRecord) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of living processes of the lost cluster: those on record, its workers and what they started.

    Workers rename themselves, so they are known by their environment: the mark of a cluster that `up` started, or the
    cluster's own temp directory together with a variable that only Ray's own processes have. A shell in which
    `ebbtide env` was used has the directory alone.
    """
    found = {(pid, started) for pid, started in record.pids if started_ticks(pid) == started}
    for process in psutil.process_iter(["pid"]):
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue  # not ours, or gone
        ours = bool(record.temp_dir) and environ.get("RAY_TMPDIR") == record.temp_dir
        ours &= STARTED_BY_RAYLET in environ or OF_A_JOB in environ
        marked = bool(record.temp_dir) and environ.get(MARK) == record.temp_dir
        if (ours or marked) and process.pid != os.getpid():
            started = started_ticks(process.pid)
            if started is not None:
                found.add((process.pid, started))
    return tuple(sorted(found))


def end_left_behind(record: ClusterRecord) -> int:
    """Kill them, each by pid and start time, and wait for their end; gives how many.

    Their slot locks and the gateway's port fall with them, and not before: a process that was told to die can take a
    while to release what it holds. One that lives on after ``LAST_BREATH_S`` keeps its lock, so nobody gets its slot.
    """
    ended = [(pid, started) for pid, started in left_behind(record) if kill_exactly(pid, started)]
    deadline_s = time.monotonic() + LAST_BREATH_S
    for pid, started in ended:
        await_end(pid, started, patience_s=deadline_s - time.monotonic())
    return len(ended)


def jobs_go_on(shared_dir: Path) -> tuple[str, ...]:
    """A line about the jobs of a pool that was taken down in order; none where the ledger cannot be read, which the
    arbiter says.
    """
    try:
        state = recover(shared_dir / "ledger").state if (shared_dir / "ledger").is_dir() else PoolState()
    except (LedgerError, OSError):
        return ()
    # It steps aside before a pool goes down, and waits; whatever else there is is told of by `ebbtide status`.
    aside = [job for job in state.jobs.values() if job.state is JobState.WAITING and job.held is None]
    jobs = sorted((job.spec.name, job.durable_step) for job in aside if not job.cancelled)
    if not jobs:
        return ()
    names = ", ".join(f"{name} from step {step}" for name, step in jobs)
    return (f"jobs that go on as soon as their drivers are back: {names}",)


def what_comes_back(shared_dir: Path) -> tuple[str, ...]:
    """Lines that say what the ledger knows of and what becomes of it."""
    try:
        state = recover(shared_dir / "ledger").state
    except LedgerError as error:
        return (f"the ledger cannot be read, so the arbiter will not start either: {error}",)
    lines = []
    if state.endpoints:
        lines.append(f"endpoints {', '.join(sorted(state.endpoints))}: replicas start again as requests come")
    jobs = sorted(name for name, job in state.jobs.items() if job.state is not JobState.ENDED)
    if jobs:
        lines.append(
            f"jobs {', '.join(jobs)}: submitted again from their last checkpoint where their submission is archived; "
            "see `ebbtide status`"
        )
    if state.frozen:
        lines.append(f"still frozen by a person: {state.frozen} (`ebbtide unfreeze`)")
    return tuple(lines)
