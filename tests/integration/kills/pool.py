"""The pool under test: its configuration, brought up by the command, seen through the eye, with one endless job."""

import json
import os
import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebbtide_autoscaler.cluster.local_cluster import runtime_dir
from tests.integration.conftest import MODEL, TRAIN
from tests.integration.kills.cluster import Cluster, a_port
from tests.integration.kills.eye import Eye, Unanswered
from tests.integration.kills.silence import Silences

JOB = "long"
PROCESS_ENGINE = "ebbtide_serve.testing.process_engine:ProcessEngine"
ANSWERS_S = 90.0  # the arbiter, after the loss of what it runs on: a new GCS or head takes tens of seconds

CONFIG = """
pool: {{name: {name}, ray_address: "{address}", shared_dir: shared, host_memory_per_node: 2 GiB}}
gateway: {{port: {port}, hold: {{max_age_s: 45}}}}
policy: {{
  park_first: true, # a pool that learns from the moves of one cell would not make those of the next
  restart_cost_s: 20, grow_after_s: 4, silence_s: 10, start_timeout_s: 120, gang_timeout_s: 75}}
endpoints:
  - &endpoint
    name: tiny
    model: {model}
    replicas: {{min: 0, max: 2}}
    idle_after_s: {idle_after_s}
    down_after_s: 1
    min_uptime_factor: 0.1
    drain_s: 20
    slo: {{ttft_s: 30, tpot_s: 30}}
    target_requests: 4
    {engine}
  - <<: *endpoint
    name: side
    replicas: {{min: 0, max: 1}}
jobs:
  - name: {job}
    entrypoint: mytrain:train
    working_dir: code
    args: {{steps: 10000000, pace_s: 0.05}}
    workers: {{min: 1, max: 4}}
    global_batch: 12
    micro_batch: 12
    min_runtime_s: 0
    max_preemptions_per_h: 100000
    max_failures: 100000
    checkpoint_every_s: 5
    host_memory_per_worker: 64 MiB
"""
# A slow machine is not what is looked for here: no replicas because of slowness, no gang given up that still imports;
# and a parked job waits, 20 s, for a replica to come, 8 s where two cores are busy, and to go again, 4 s.
# Bounds that protect a job from its pool's owner are set out of the way: here hundreds of tides come in an hour.

ENGINES = {
    "process": f"engine_class: {PROCESS_ENGINE}\n    engine: {{{{tokens_per_s: {{tokens_per_s}}, start_s: 0.5}}}}",
    "vllm": (
        "engine: {{enforce_eager: true, dtype: bfloat16, max_model_len: 512, max_num_seqs: 8,"
        " max_num_batched_tokens: 512, kv_cache_memory_bytes: 67108864}}"
    ),
}


@dataclass
class Pool:
    """A pool on a cluster of ours. ``home`` holds everything: the file, the shared directory, logs."""

    cluster: Cluster
    home: Path
    engine: str = "process"
    name: str = field(default_factory=lambda: f"k{os.getpid()}{secrets.token_hex(2)}")
    port: int = field(default_factory=a_port)
    eye: Eye = field(init=False)
    broken: bool = False  # something was: its files are to be kept
    silences: Silences = field(default_factory=Silences)
    node_machines: dict[str, str] = field(default_factory=dict)  # machine by node id, of all nodes ever seen

    def __post_init__(self) -> None:
        os.environ["EBBTIDE_HOME"] = str(self.home / "home")
        self.eye = Eye({}, self.home / "eye.log")

    # ---- bringing it up

    @property
    def file(self) -> Path:
        """The configuration."""
        return self.home / "pool.yaml"

    def write_file(self, *, tokens_per_s: int = 50, idle_after_s: float = 1.5) -> None:
        """Write the configuration for the present cluster; another speed makes the replicas roll."""
        values = {
            "name": self.name,
            "address": self.cluster.address,
            "port": self.port,
            "model": MODEL if self.engine == "vllm" else ".",
            "engine": ENGINES[self.engine].format(tokens_per_s=tokens_per_s),
            "idle_after_s": idle_after_s,
            "job": JOB,
        }
        (self.home / "code").mkdir(exist_ok=True)
        (self.home / "code" / "mytrain.py").write_text(textwrap.dedent(TRAIN))
        self.file.write_text(CONFIG.format(**values))

    def command(self, *arguments: str, timeout_s: float = 200.0, check: bool = True) -> str:
        """Run `ebbtide` as a user does; gives what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "ebbtide.cli", *arguments],
            env={**os.environ, **self.cluster.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        with (self.home / "commands.log").open("a") as log:
            log.write(f"[{time.time():.1f}] ebbtide {' '.join(arguments)} -> {done.returncode}\n{done.stdout}\n")
        assert not check or done.returncode == 0, f"ebbtide {' '.join(arguments)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def up(self) -> None:
        """`ebbtide up` on the present cluster."""
        self.write_file()
        self.eye.close()
        self.eye = Eye(self.cluster.env, self.home / "eye.log")
        self.command("up", str(self.file))

    def submit(self) -> None:
        """`ebbtide submit` of the endless job."""
        self.command("submit", str(self.file), "--job", JOB, "--no-follow")

    # ---- looking at it

    @property
    def shared(self) -> Path:
        """The shared directory."""
        return self.home / "shared"

    @property
    def lock_dir(self) -> Path:
        """Of the slot locks; one for both machines, the locks are named by machine."""
        return runtime_dir(self.name) / "slots"

    @property
    def url(self) -> str:
        """The gateway's."""
        return f"http://127.0.0.1:{self.port}"

    def look(self, timeout_s: float = 2.0) -> dict[str, Any] | None:
        """The arbiter's status; None when it does not answer now."""
        try:
            found: dict[str, Any] | None = self.eye.ask("status", timeout_s=timeout_s)
        except Unanswered:
            return None
        if found is None or "jobs" not in found:
            return None
        self.silences.take(found, time.monotonic())
        return found

    def status(self) -> dict[str, Any]:
        """The status, as soon as the arbiter answers: it may have been killed a moment ago.

        Raises:
            Stuck: it does not answer within :data:`ANSWERS_S`.
        """
        deadline_s = time.monotonic() + ANSWERS_S
        while time.monotonic() < deadline_s:
            found = self.look()
            if found is not None:
                return found
            time.sleep(0.1)
        raise Stuck(f"the arbiter has not answered for {ANSWERS_S:g} s")

    def job(self, status: dict[str, Any] | None = None) -> dict[str, Any]:
        """The job's part of the status."""
        jobs = (self.status() if status is None else status)["jobs"]
        return next((job for job in jobs if job["job"] == JOB), {"state": "unknown", "step": 0, "slots": []})

    def seats(self, *, default: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """All seats; ``default`` when the arbiter does not answer at once."""
        found = self.status() if default is None else self.look()
        if found is None:
            return default or []
        return seats_of(found)

    def machine_of(self, node: str) -> str:
        """Machine of a node id, also of one that is gone; "" if it was never seen."""
        if node not in self.node_machines:
            self.learn_nodes()
        return self.node_machines.get(node, "")

    def learn_nodes(self) -> None:
        """Remember which node id each machine has now, by its raylet's own command line."""
        for machine, raylet in self.cluster.machines.items():
            for part in raylet.command:
                if part.startswith("--node_id=") or part.startswith("--node-id="):
                    self.node_machines[part.partition("=")[2]] = machine

    def node_of(self, machine: str) -> str:
        """The machine's present node id; "" while it is away."""
        self.learn_nodes()
        here = [node for node, name in self.node_machines.items() if name == machine]
        return here[-1] if here and machine in self.cluster.machines else ""

    def busiest_machine(self) -> str:
        """The machine with a replica, else one with a rank of the job."""
        found = self.look() or {"slots": []}
        held = sorted(
            (slot for slot in found["slots"] if slot["occupant"]),
            key=lambda slot: (slot["occupant"] == JOB, slot["slot"]),
        )
        return self.machine_of(held[0]["node"]) if held else "a"

    def wait(self, what: str, holds: Callable[[dict[str, Any]], bool], limit_s: float, every_s: float = 0.02) -> None:
        """Until the status shows it.

        Raises:
            Stuck: it does not within ``limit_s`` seconds.
        """
        deadline_s = time.monotonic() + limit_s
        status: dict[str, Any] = {}
        while True:
            status = self.look() or status
            if status and holds(status):
                return
            if time.monotonic() > deadline_s:
                raise Stuck(f"not within {limit_s:g} s: {what}; last seen: {brief(status)}")
            time.sleep(every_s)

    def close(self) -> None:
        """Stop looking."""
        self.eye.close()


class Stuck(AssertionError):
    """The pool did not come to where it must; the message says what was seen last."""


def seats_of(status: dict[str, Any]) -> list[dict[str, Any]]:
    """All seats of all endpoints."""
    return [seat for endpoint in status["endpoints"] for seat in endpoint["seats"]]


def brief(status: dict[str, Any]) -> str:
    """A status in one line."""
    if not status:
        return "no status"
    jobs = [
        f"{j['job']} {j['state']} on {len(j['slots'])} step {j['step']} {j.get('waits') or ''}" for j in status["jobs"]
    ]
    seats = [f"{seat['seat']} {seat['state']} {seat.get('waits') or ''}" for seat in seats_of(status)]
    slots = [f"{slot['state']}:{slot['occupant'] or '-'}" for slot in status["slots"]]
    arbiter = json.dumps({k: v for k, v in status["arbiter"].items() if k in ("epoch", "frozen", "frozen_by") and v})
    waits = [str(endpoint.get("waits")) for endpoint in status["endpoints"] if endpoint.get("waits")]
    notices = [notice["why"] for notice in status.get("notices", [])]
    return "; ".join([*jobs, *seats, " ".join(slots), arbiter, *waits, *notices])
