"""A pool as a user runs it: `ebbtide up`, `submit`, `status`, `down`; for benchmarks that measure the whole line."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import ClusterRecord, load_cluster

Status = dict[str, Any]


class RunFailed(RuntimeError):
    """The run could not go to its end; the message says where it stopped."""


def ebbtide(*arguments: str) -> None:
    """Run the command as a user does; its output goes to the terminal.

    Raises:
        RunFailed: it ended with another code than 0.
    """
    command = [sys.executable, "-m", "ebbtide.cli", *arguments]
    done = subprocess.run(command, env=os.environ, timeout=300)
    if done.returncode:
        raise RunFailed(f"`ebbtide {' '.join(arguments)}` ended with {done.returncode}")


@contextmanager
def running_pool(config: Path) -> Iterator[ClusterRecord]:
    """The pool of ``config``, up, and this process joined to its cluster; taken down at the end in any case."""
    ebbtide("up", str(config))
    record = load_cluster()
    try:
        join(record)
        yield record
    finally:
        ray.shutdown()  # or Ray would end this process when its cluster goes
        with suppress(subprocess.SubprocessError, RunFailed):
            ebbtide("down", "--now")


def wait(what: str, limit_s: float, holds: Callable[[Status], bool], *, every_s: float = 0.2) -> None:
    """Until the pool's status shows it.

    Raises:
        RunFailed: it does not within ``limit_s`` seconds.
    """
    link = ArbiterLink()
    status: Status = {}
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        status = link.call("status") or {}
        if status and holds(status):
            return
        time.sleep(every_s)
    raise RunFailed(f"not within {limit_s:g} s: {what}; last status: {status}")


def job_of(status: Status, job: str) -> Status:
    """The job's part of a status; empty if it is not known."""
    return next((one for one in status.get("jobs", []) if one["job"] == job), {})


def step_of(job: str) -> int:
    """Steps that the job has finished."""
    status = ArbiterLink().call("status", timeout_s=10.0) or {}
    return int(job_of(status, job).get("step", 0))


def all_training(status: Status, job: str) -> bool:
    """Whether the job trains on every slot of the pool."""
    slots = status.get("slots", [])
    running = job_of(status, job).get("state") == "running"
    return bool(slots) and running and all(slot["occupant"] == job for slot in slots)
