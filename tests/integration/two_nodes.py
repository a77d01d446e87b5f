"""A real Ray cluster of several nodes on one machine, and a pool that joins it: what `ray.cluster_utils` can, named.

Each node stands for a machine: it has the label ``ebbtide.io/machine``, so that its logical GPUs have an identity of
their own, which a node that comes back under the same machine name has again. The head has no GPUs. Everything has a
temp directory, a token and ports of its own, and is ended by pid.
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from ebbtide.client.ray_auth import adopt
from ebbtide_autoscaler.cluster.local_cluster import runtime_dir
from ebbtide_autoscaler.control import fence_placement_groups as fences
from tests.integration.conftest import TRAIN, Pool, a_free_port, ebbtide

MACHINE_LABEL = "ebbtide.io/machine"
OBJECT_STORE_BYTES = 80 << 20
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # A node whose raylet was killed is dead after 3 s instead of 15: calls to it fail at once, each second.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "HF_HUB_OFFLINE": "1",
    # Ray makes its workers yield to everything else (15): whatever runs beside a test would decide how fast they are.
    "RAY_worker_niceness": "0",
}

CONFIG = """
pool: {{name: {name}, ray_address: "{address}", shared_dir: shared, host_memory_per_node: 2 GiB}}
gateway: {{port: {port}, per_node: {per_node}}}
policy: {{park_first: true, restart_cost_s: 300, grow_after_s: 2, silence_s: 10}}
endpoints:
  - name: tiny
    model: .
    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine
    replicas: {{min: {replicas_min}, max: {replicas_max}}}
    gpus_per_replica: {gpus}
    idle_after_s: 3
    down_after_s: 2
    min_uptime_factor: 0.1
    drain_s: 10
    engine: {{}}
"""
"""A pool of this cluster with one endpoint on the process engine. ``replicas_min: 0``: it comes when asked for."""


@dataclass
class TwoNodes:
    """A running cluster. Make one with :func:`two_nodes`; ``nodes`` are the living ones, by machine name."""

    folder: Path
    cluster: Any
    nodes: dict[str, Any] = field(default_factory=dict)
    pool: Pool | None = None
    values: dict[str, object] = field(default_factory=dict)  # of the configuration

    @property
    def address(self) -> str:
        return str(self.cluster.gcs_address)

    def node_id(self, machine: str) -> str:
        """Ray's id of the machine's present node."""
        return str(self.nodes[machine].node_id)

    def add_node(self, machine: str, *, gpus: int = 2, cpus: int = 8) -> str:
        """Start a node on ``machine``; gives its id. Also for a machine whose node was killed."""
        self.nodes[machine] = self.cluster.add_node(
            num_gpus=gpus,
            num_cpus=cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            labels={MACHINE_LABEL: machine},
        )
        return self.node_id(machine)

    def raylet(self, machine: str) -> psutil.Process:
        """The machine's raylet, the parent of all its workers."""
        return psutil.Process(self.nodes[machine].all_processes["raylet"][0].process.pid)

    def kill_node(self, machine: str) -> str:
        """kill -9 of everything on ``machine`` at once, as a power cut would; gives the id of the node that was."""
        node = self.node_id(machine)
        raylet = self.raylet(machine)
        for process in [raylet, *raylet.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._forget(machine)
        return node

    def kill_raylet(self, machine: str) -> str:
        """kill -9 of the raylet alone; its workers notice and leave by themselves. Gives the node's id."""
        node = self.node_id(machine)
        self.raylet(machine).send_signal(signal.SIGKILL)
        self._forget(machine)
        return node

    def processes(self, machine: str, title: str) -> list[psutil.Process]:
        """The machine's worker processes whose title begins so, such as "ray::NodeAgent"."""
        found = []
        for one in self.raylet(machine).children(recursive=True):
            with suppress(psutil.Error):  # it has just died
                if title in " ".join(one.cmdline()):
                    found.append(one)
        return found

    @property
    def lock_dir(self) -> Path:
        """Where the slot locks of the pool lie."""
        return runtime_dir(str(self.values["name"])) / "slots"

    def _forget(self, machine: str) -> None:
        node = self.nodes.pop(machine)
        with suppress(Exception):  # what was killed above cannot be stopped in order
            self.cluster.remove_node(node, allow_graceful=False)

    def up(self, config: str = CONFIG, **values: object) -> Pool:
        """`ebbtide up` of ``config``, a template as :data:`CONFIG`; this process has then joined the cluster.

        Give ``values`` for its names; those that are not given stay as they were at the last call.
        """
        if not self.values:
            name = f"n{os.getpid()}{secrets.token_hex(2)}"
            self.values = {"replicas_min": 0, "replicas_max": 2, "gpus": 1, "per_node": "false"}
            self.values |= {"port": a_free_port(), "name": name}
        self.values = {**self.values, "address": self.address, **values}
        text = config.format(**self.values)
        (self.folder / "pool.yaml").write_text(text)
        (self.folder / "mytrain.py").write_text(textwrap.dedent(TRAIN))
        ebbtide("up", str(self.folder / "pool.yaml"))
        record = load_cluster()
        join(record)
        self.pool = Pool(record, self.folder)
        return self.pool

    def alive(self, node: str) -> bool:
        """Whether Ray takes the node for alive; this process must have joined."""
        return any(entry["NodeID"] == node and entry["Alive"] for entry in ray.nodes())

    def fences(self) -> dict[str, str]:
        """On which node each fence that was not removed stands, by name; "" where it waits for one."""
        table = fences.table(str(self.values["name"])).values()
        return {one.name: one.node if one.state == "CREATED" else "" for one in table}


@contextmanager
def two_nodes(
    folder: Path, *, machines: tuple[str, ...] = ("a", "b"), gpus: int = 2, dashboard: bool = False, **env: str
) -> Iterator[TwoNodes]:
    """A cluster of a head without GPUs and one node per machine; ``env`` goes to all its processes."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    temp_dir = tempfile.mkdtemp(prefix="eb2-", dir="/tmp")  # short: Ray's socket names have 107 bytes at most
    token = Path(temp_dir) / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    paths = {
        "RAY_TMPDIR": temp_dir,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "EBBTIDE_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    os.environ.pop("RAY_ADDRESS", None)
    adopt({**ENVIRONMENT, **paths, **env})
    made: TwoNodes | None = None
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 4,
                "num_gpus": 0,
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": dashboard,
            },
        )
        made = TwoNodes(folder, cluster)
        for machine in machines:
            made.add_node(machine, gpus=gpus)
        yield made
    finally:
        ray.shutdown()
        if made is not None and made.pool is not None:
            ebbtide("down", "--now", check=False)
        ours = _processes(temp_dir)
        if made is not None:
            with suppress(Exception):
                made.cluster.shutdown()
        for process in ours:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _processes(temp_dir: str) -> list[psutil.Process]:
    """All processes of the cluster, with those that they started."""
    found = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(temp_dir in part for part in process.info["cmdline"] or ()) and process.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                for one in [process, *process.children(recursive=True)]:
                    found[one.pid] = one
    return list(found.values())


def wait_dead(cluster: TwoNodes, node: str, limit_s: float = 30.0) -> None:
    """Until Ray has noticed that ``node`` is gone."""
    deadline_s = time.monotonic() + limit_s
    while cluster.alive(node):
        assert time.monotonic() < deadline_s, f"Ray takes {node} for alive after {limit_s:g} s"
        time.sleep(0.1)
