"""The pool that the line is played on: helper, `ebbtide up`, status, requests. What a user does, from one process."""

import argparse
import asyncio
import inspect
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import ray

from benchmarks.demo.client import Outcome, send_all
from benchmarks.demo.traffic import Request
from benchmarks.gpu.line.setting import ENDPOINT, JOB, POOL, Setting
from benchmarks.pool_run import Status, job_of
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import ClusterRecord, load_cluster
from ebbtide.ledger.errors import LedgerError
from ebbtide.system.runtime_dir import runtime_dir

LOOK_S = 0.1
ANSWERS_S = 10.0  # the arbiter, when it is asked for its status
COMMAND_S = 120.0
HELPER_READY_S = 20.0  # it imports the CUDA bindings, and starts CUDA: seconds on a slow disk


class NotSo(Exception):
    """What was waited for did not come about."""


class Pool:
    """One pool, from `up` to `down`."""

    def __init__(self, setting: Setting, left_s: Callable[[], float], say: Callable[[str], None]) -> None:
        self.setting, self.left_s, self.say = setting, left_s, say
        self.record: ClusterRecord | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._text = "\n".join(inspect.getsource(one) for one in (argparse, inspect, subprocess, textwrap, json))

    def start_helper(self) -> str:
        """The node's helper, apart; what it says of itself.

        Raises:
            NotSo: it ended, or was not ready in time.
        """
        log = self.setting.logs / "helper.log"
        command = [sys.executable, "-m", "ebbtide.helper", "--pool", POOL]
        with log.open("wb") as file:
            self._helper = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        deadline_s = time.monotonic() + HELPER_READY_S
        while "ready: " not in (said := log.read_text(errors="replace")):
            if self._helper.poll() is not None or time.monotonic() > deadline_s:
                raise NotSo(f"the helper is not ready within {HELPER_READY_S:g} s: {said[-500:]}")
            time.sleep(LOOK_S)
        return said.strip()

    def command(self, *words: object, limit_s: float = COMMAND_S) -> str:
        """Run `ebbtide` with these words; what it printed.

        Raises:
            NotSo: it ended with another code than 0, or was cut off.
        """
        shown = " ".join(["ebbtide", *map(str, words)])
        limit_s = max(1.0, min(limit_s, self.left_s()))
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "ebbtide.cli", *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise NotSo(f"`{shown}` did not end within {limit_s:.0f} s: {_end(error.stdout)}") from error
        self.say(f"{shown}: exit code {done.returncode} after {time.monotonic() - began_s:.1f} s")
        (self.setting.logs / "commands.log").open("a").write(f"$ {shown}\n{done.stdout}\n")
        if done.returncode:
            raise NotSo(f"`{shown}` ended with {done.returncode}: {_end(done.stdout)}")
        return done.stdout

    def down(self) -> None:
        """`ebbtide down`, once this process has left the cluster: or Ray would end it too."""
        ray.shutdown()
        self.command("down", "--now")

    def join(self) -> None:
        """Make this process a driver of the pool's cluster."""
        self.record = load_cluster()
        join(self.record)

    def status(self) -> Status:
        """What the arbiter says; empty while it does not answer."""
        with suppress(LedgerError, OSError, RuntimeError, TimeoutError, ray.exceptions.RayError):
            return ArbiterLink().call("status", timeout_s=ANSWERS_S) or {}
        return {}

    def job(self, name: str = JOB) -> Status:
        """The job's part of the status.

        Raises:
            NotSo: the arbiter does not answer, or knows no such job.
        """
        until_s = time.monotonic() + ANSWERS_S
        while not (found := job_of(self.status(), name)):
            if time.monotonic() > until_s:
                raise NotSo(f"the arbiter says nothing of the job {name}")
            time.sleep(LOOK_S)
        return found

    def endpoint(self) -> Status:
        """The endpoint's part of the status."""
        return next((one for one in self.status().get("endpoints", []) if one["endpoint"] == ENDPOINT), {})

    def wait(self, what: str, limit_s: float, holds: Callable[[Status], bool]) -> float:
        """Until the status shows it; seconds that it took.

        Raises:
            NotSo: it does not in time.
        """
        last: Status = {}
        began_s = time.monotonic()
        limit_s = max(1.0, min(limit_s, self.left_s()))
        while time.monotonic() - began_s < limit_s:
            last = self.status() or last
            with suppress(KeyError, IndexError, TypeError):  # a part that is not there yet
                if last and holds(last):
                    took_s = time.monotonic() - began_s
                    self.say(f"  {what}: after {took_s:.1f} s")
                    return round(took_s, 2)
            time.sleep(LOOK_S)
        raise NotSo(f"not within {limit_s:.0f} s: {what}; {_shown(last)}")

    def steps(self, job: str, more: int, limit_s: float) -> float:
        """Until the job has made ``more`` further steps; seconds that it took."""
        first = int(self.job(job)["step"])
        done = f"{more} further steps of {job}"
        return self.wait(done, limit_s, lambda status: int(job_of(status, job).get("step", 0)) >= first + more)

    def ask(self, requests: Sequence[Request]) -> list[Outcome]:
        """Send requests as users would; an outcome for each.

        Raises:
            NotSo: they took longer than there is time.
        """
        assert self.record is not None, "joined"
        sent = send_all(self.record.gateway_url, ENDPOINT, requests, self._text)
        try:
            return asyncio.run(asyncio.wait_for(sent, max(5.0, self.left_s())))
        except TimeoutError as error:
            raise NotSo(f"{len(requests)} requests were not answered in time") from error

    def folders(self) -> list[Path]:
        """Where logs of the pool are."""
        return log_folders(self.setting, Path(os.environ["EBBTIDE_HOME"]))


def log_folders(setting: Setting, home: Path) -> list[Path]:
    """Where logs of a pool of this setting are; ``home`` is that of the ``ebbtide`` command."""
    return [one for one in (setting.shared, home, setting.logs, runtime_dir(POOL)) if one.exists()]


def trains(status: Status, job: str) -> bool:
    """Whether the job runs and has the slot."""
    occupied = any(slot["occupant"] == job for slot in status["slots"])
    return occupied and job_of(status, job).get("state") == "running"


def is_free(status: Status) -> bool:
    """Whether no slot has an occupant."""
    return not any(slot["occupant"] for slot in status["slots"])


def _end(said: str | bytes | None) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
    return " | ".join(text.strip().splitlines()[-6:])


def _shown(status: Status) -> str:
    slots = [(one.get("state"), one.get("occupant")) for one in status.get("slots", ())]
    jobs = [
        (one.get("job"), one.get("state"), one.get("waits"), one.get("last_error")) for one in status.get("jobs", ())
    ]
    seats = [
        (seat.get("seat"), seat.get("state"), seat.get("waits"), seat.get("last_error"))
        for one in status.get("endpoints", ())
        for seat in one.get("seats", ())
    ]
    return f"slots {slots}, jobs {jobs}, replicas {seats}"
