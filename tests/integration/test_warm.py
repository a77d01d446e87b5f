"""Warm replicas on a real cluster: parked while training has their slots, woken as the same process, in numbered steps.

One node, three logical GPUs, a job that takes all of them and an engine that has a process, memory and slot locks.
"""

import json
import os
import signal
import textwrap
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import load_cluster
from tests.integration.conftest import TRAIN, Pool, a_free_port, ebbtide, ebbtide_here

pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(240)]

SEAT = "chat/0"
FILE = """
pool: {{name: {name}, slots: 3, num_cpus: 16, shared_dir: shared, host_memory_per_node: 1 GiB}}
gateway: {{port: {port}}}
policy: {{park_first: true, restart_cost_s: 20, grow_after_s: 4}}
endpoints:
  - name: chat
    model: m
    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine
    engine: {{tokens_per_s: 50, allocate_mib: 64}}
    replicas: {{min: 0, max: 1}}
    warm: {{replicas: 1}}
    idle_after_s: 2
    down_after_s: 1
    min_uptime_factor: 0.1
    drain_s: 10
jobs:
  - name: steady
    entrypoint: mytrain:train
    working_dir: code
    args: {{steps: 1000000, pace_s: 0.05}}
    workers: {{min: 1, max: 3}}
    global_batch: 6
    micro_batch: 6
    min_runtime_s: 0
    max_preemptions_per_h: 1000
    host_memory_per_worker: 64 MiB
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder, before = tmp_path_factory.mktemp("warm"), dict(os.environ)
    os.environ["EBBTIDE_HOME"] = str(folder / "home")
    (folder / "code").mkdir()
    (folder / "code" / "mytrain.py").write_text(textwrap.dedent(TRAIN))
    file = folder / "pool.yaml"
    file.write_text(FILE.format(name=f"w{os.getpid()}", port=a_free_port()))
    try:
        ebbtide("up", str(file))
        join(load_cluster())
        found = Pool(load_cluster(), folder)
        ebbtide_here("submit", str(file), "--job", "steady", "--no-follow")
        yield found
        found.check_promises()
    finally:
        ray.shutdown()
        ebbtide("down", "--now", check=False)
        os.environ.clear()
        os.environ.update(before)


def seat(pool: Pool) -> dict[str, Any]:
    return next((one for one in pool.seats() if one["seat"] == SEAT), {"state": "cold", "pid": 0})


def ask(pool: Pool) -> int:
    request = urllib.request.Request(
        f"{pool.record.gateway_url}/v1/completions",
        json.dumps({"model": "chat", "prompt": "a", "max_tokens": 2}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return int(reply.status)


def trains_on_all(pool: Pool) -> bool:
    job = pool.job("steady")
    return job["state"] == "running" and len(job["slots"]) == 3


def warm_beside_training(pool: Pool) -> dict[str, Any]:
    pool.wait("the replica is parked", lambda: seat(pool)["state"] == "warm")
    parked = seat(pool)
    pool.wait("training has all slots again", lambda: trains_on_all(pool))
    assert seat(pool)["state"] == "warm"
    return parked


def test_1_a_replica_that_is_not_wanted_parks_and_training_has_its_slot(pool: Pool) -> None:
    pool.wait("training has all slots", lambda: trains_on_all(pool))
    assert ask(pool) == 200
    before = seat(pool)
    assert before["state"] == "ready"
    parked = warm_beside_training(pool)
    assert parked["pid"] == before["pid"], "the very process"
    assert "warm" in ebbtide_here("status").output


def test_2_the_next_request_wakes_it_and_no_other_is_started(pool: Pool) -> None:
    before, parks = seat(pool), pool.job("steady")["parks"]
    assert ask(pool) == 200
    assert seat(pool)["pid"] == before["pid"]
    assert "and it is warm" in ebbtide_here("why", SEAT).output
    warm_beside_training(pool)
    assert pool.job("steady")["parks"] + pool.job("steady")["restarts"] > parks


def test_3_one_that_is_killed_while_it_is_parked_is_started_anew(pool: Pool) -> None:
    parked = seat(pool)
    os.kill(parked["pid"], signal.SIGKILL)
    pool.wait("its seat is free again", lambda: seat(pool)["state"] == "cold")  # else another seat is taken
    assert ask(pool) == 200
    assert seat(pool)["pid"] != parked["pid"]
    warm_beside_training(pool)


def test_4_the_arbiter_dies_and_the_next_one_wakes_what_is_parked(pool: Pool) -> None:
    parked, arbiter = seat(pool), pool.status()["arbiter"]["pid"]
    os.kill(arbiter, signal.SIGKILL)
    pool.wait("another arbiter", lambda: pool.status()["arbiter"]["pid"] != arbiter)
    assert ask(pool) == 200
    assert seat(pool)["pid"] == parked["pid"]
