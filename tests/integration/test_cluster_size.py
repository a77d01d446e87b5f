"""A cluster that grows and shrinks as the pool needs it, for real: Ray's own autoscaler with our node provider.

The head runs Ray's monitor on the cluster file of ``docs/cluster.md``; its machines are raylets on this one. Nothing of
Ray's ``AutoscalingCluster`` is used, which runs ``ray stop``; everything is ended by pid.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ruamel.yaml import YAML

from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from ebbtide.client.ray_auth import adopt
from ebbtide.pool.events import NodeFound
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.node_names import ELASTIC_LABEL
from ebbtide_autoscaler.cluster.resource_request import request_of, send
from ebbtide_autoscaler.cluster.size import SizeConfig, SizeMemory, cluster_size
from tests.builders.policy import fold
from tests.integration.conftest import TRAIN, Pool, a_free_port, ebbtide, ebbtide_here
from tests.integration.two_nodes import ENVIRONMENT, OBJECT_STORE_BYTES

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
GPUS = 2  # of a node of that file
IDLE_S = 3.0  # Ray's own timeout; minutes in the file
CONFIG = """
pool:
  name: {name}
  ray_address: "{address}"
  shared_dir: shared
  host_memory_per_node: 1 GiB
  nodes_min: 1
  nodes_max: 2
  node_gpus: 2
  nodes_grow_after_s: 1
  nodes_idle_after_s: 4
gateway: {{port: {port}}}
"""


def cluster_file(folder: Path, address: str) -> dict[str, Any]:
    """The one that the page shows, with this cluster's places and a short idle timeout."""
    (block,) = re.findall(r"```yaml\n(cluster_name:.*?)```", PAGE.read_text(), re.S)
    found: dict[str, Any] = json.loads(json.dumps(YAML(typ="safe").load(block)))
    found["idle_timeout_minutes"] = IDLE_S / 60
    found["provider"]["machines_config"] = {"gcs_address": address, "folder": str(folder / "machines")}
    return found


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray head without GPUs and with an autoscaler; this process has joined it. Gives its address."""
    folder = tmp_path_factory.mktemp("elastic")
    before = dict(os.environ)
    temp_dir = tempfile.mkdtemp(prefix="ebe-", dir="/tmp")  # short: Ray's socket names have 107 bytes at most
    token = Path(temp_dir) / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    address = f"127.0.0.1:{a_free_port()}"
    os.environ.pop("RAY_ADDRESS", None)
    adopt(
        ENVIRONMENT
        | {
            "RAY_TMPDIR": temp_dir,
            "RAY_AUTH_TOKEN_PATH": str(token),
            "EBBTIDE_HOME": str(folder / "home"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": "head",
            "RAY_NODE_TYPE_NAME": "head",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",  # instead of 5
        }
    )
    file = folder / "cluster.json"
    file.write_text(json.dumps(cluster_file(folder, address)))
    flags = [f"--port={address.rpartition(':')[2]}", "--num-cpus=4", "--num-gpus=0", "--node-ip-address=127.0.0.1"]
    flags += ["--include-dashboard=false", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={temp_dir}"]
    flags += [f"--dashboard-agent-listen-port={a_free_port()}", f"--autoscaling-config={file}", "--block"]
    with (folder / "head.log").open("wb") as out:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *flags]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        log = folder / "head.log"
        until(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None, 90)
        assert process.poll() is None, log.read_text()
        for name in ("RAY_CLOUD_INSTANCE_ID", "RAY_NODE_TYPE_NAME"):
            del os.environ[name]  # of the head alone
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        yield address
    finally:
        ray.shutdown()
        ours = {one.pid: one for one in processes(temp_dir, address)}
        for one in ours.values():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(30)
        os.environ.clear()
        os.environ.update(before)
        monitor = "".join(path.read_text()[-6000:] for path in Path(temp_dir).glob("session_2*/logs/monitor.log"))
        print(monitor)  # shown where a test has failed
        shutil.rmtree(temp_dir, ignore_errors=True)


def processes(temp_dir: str, address: str) -> list[psutil.Process]:
    """All of this cluster, with what they have started."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        if any(temp_dir in part or address in part for part in one.info["cmdline"] or ()) and one.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                found += [one, *one.children(recursive=True)]
    return found


def until(true: Any, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, elastic() if ray.is_initialized() else "no Ray"
        time.sleep(0.1)


def elastic() -> dict[NodeId, int]:
    """Living nodes that Ray's autoscaler has started, with their GPUs."""
    return {
        NodeId(one["NodeID"]): int(one["Resources"]["GPU"])
        for one in ray.nodes()
        if one["Alive"] and one["Labels"].get(ELASTIC_LABEL) == "true"
    }


def test_what_the_policy_wishes_for_comes_and_what_it_lets_go_leaves(head: str) -> None:
    """The policy and its request alone, without an arbiter: two nodes by name, then the one that is not named goes."""
    config = SizeConfig(nodes_min=2, nodes_max=2, node_slots=GPUS)
    wish, memory = cluster_size(0.0, PoolState(), {}, frozenset(), SizeMemory(), config)
    assert wish.new == 2
    send(request_of(wish, PoolState(), elastic(), GPUS))
    until(lambda: len(elastic()) == 2, 120)
    assert set(elastic().values()) == {GPUS}

    state = fold(PoolState(), *(NodeFound(node, 0) for node in elastic()))
    smaller = SizeConfig(nodes_min=1, nodes_max=2, node_slots=GPUS, idle_after_s=10.0)
    for now_s in (1.0, 11.0):
        wish, memory = cluster_size(now_s, state, {}, frozenset(elastic()), memory, smaller)
    (goes,) = wish.going
    (stays,) = set(elastic()) - {goes}
    send(request_of(wish, state, elastic(), GPUS))
    until(lambda: list(elastic()) == [stays], 60)
    time.sleep(3 * IDLE_S)
    assert list(elastic()) == [stays], "idle as it is, it was asked for by name"
    send(())
    until(lambda: not elastic(), 60)


def test_a_job_that_lacks_slots_brings_a_node_and_an_empty_one_leaves_in_good_order(head: str, tmp_path: Path) -> None:
    """The whole pool: `up` on a cluster with no GPU at all; the arbiter asks, drains, and lets go."""
    name = f"e{os.getpid()}{secrets.token_hex(2)}"
    (tmp_path / "pool.yaml").write_text(CONFIG.format(name=name, address=head, port=a_free_port()))
    (tmp_path / "mytrain.py").write_text(textwrap.dedent(TRAIN))
    ray.shutdown()
    ebbtide("up", str(tmp_path / "pool.yaml"))
    driver = None
    try:
        record = load_cluster()
        join(record)
        pool = Pool(record, tmp_path)
        pool.wait("a first node, by nodes_min", lambda: free(pool) == GPUS)
        driver = pool.drive("wide", steps=1_000_000, workers=(3, 3))
        asked = "the cluster: 1 node of 1..2: 1 more asked for; job wide waits for 3 slots"
        pool.wait("a second node is asked for", lambda: asked in (pool.job("wide").get("waits") or ""))
        assert pool.status()["cluster"]["new"] == 1
        assert asked in " ".join(ebbtide_here("why", "wide").output.split())
        pool.wait("the job trains on both", lambda: pool.job("wide")["state"] == "running")
        assert len(elastic()) == 2

        ebbtide("cancel", "wide")
        pool.wait("a node drains as not needed", lambda: bool(draining(pool)))
        (goes,) = draining(pool)
        pool.wait("Ray has ended it", lambda: NodeId(goes) not in elastic())
        pool.wait("the pool has one node", lambda: goes not in [one["node"] for one in pool.status()["nodes"]])
        assert len(elastic()) == 1 and free(pool) == GPUS
        assert pool.status()["cluster"]["reason"] == "1 node of 1..2: all that is wanted fits"
        pool.check_promises()
    finally:
        if driver is not None:
            driver.kill()
            driver.wait(30)
        ray.shutdown()
        ebbtide("down", "--now", check=False)


def free(pool: Pool) -> int:
    return sum(slot["state"] == "free" for slot in pool.status()["slots"])


def draining(pool: Pool) -> list[str]:
    return [one["node"] for one in pool.status()["nodes"] if (one["draining"] or "").startswith("not needed: ")]
