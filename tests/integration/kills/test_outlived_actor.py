"""A GCS that dies under an actor's constructor forgets its lease: killed later, the actor leaves its process behind."""

import os
import subprocess
import sys
import time

import pytest

from ebbtide.system.process import await_end, kill_exactly
from tests.integration.kills.cluster import Cluster

# 35 s on two quiet cores; in short, and without Ray: tests/platform/agent/ray_workers/test_outlived_actors.py
pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(200)]

DRIVER = """
import sys, time
import ray
from ebbtide.agent.ray_workers.logical_gpus import gpu_users, ray_workers
from ebbtide.agent.ray_workers.outlived_actors import actor_died_s, end_outlived

ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_gpus=1, num_cpus=0)
class Slow:
    def __init__(self):
        time.sleep(5)
    def here(self):
        return True

def workers():
    (node,) = [one for one in ray.nodes() if one["Alive"] and one["Labels"].get("ebbtide.io/machine") == "a"]
    return ray_workers(node["NodeManagerAddress"], node["NodeManagerPort"], timeout_s=5)

def end():
    return end_outlived(workers(), died_s=actor_died_s)

slow = Slow.options(label_selector={"ebbtide.io/machine": "a"}).remote()
print("asked", flush=True)
sys.stdin.readline()
assert ray.get(slow.here.remote(), timeout=60)
assert end() == []
ray.kill(slow)
killed_s = time.monotonic()
time.sleep(3)
print("left", len(gpu_users(workers())), flush=True)
assert end() == [], "a process that is told of it gets the time to go"
while not (ended := end()) and time.monotonic() < killed_s + 30:
    time.sleep(0.5)
while gpu_users(workers()) and time.monotonic() < killed_s + 40:
    time.sleep(0.5)
print("ended", len(ended), "left", len(gpu_users(workers())), flush=True)
"""


def test_the_process_that_a_dead_actor_left_behind_is_ended_and_its_gpu_is_there_again() -> None:
    cluster = Cluster(redis=True)
    try:
        cluster.start()
        environ = {**os.environ, **cluster.env}
        command = [sys.executable, "-c", DRIVER, cluster.address]
        with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdin is not None and driver.stdout is not None
            assert driver.stdout.readline() == "asked\n"
            time.sleep(3)  # the worker has registered by now, and the constructor runs
            gcs = cluster.gcs()
            assert kill_exactly(gcs.pid, gcs.started) and await_end(gcs.pid, gcs.started, patience_s=10)
            cluster.restart_gcs()
            said = driver.communicate("go\n", timeout=120)[0].splitlines()
        assert said[0] == "left 1", "Ray has changed: is `outlived_actors` still needed?"
        assert said[1:] == ["ended 1 left 0"]
    finally:
        cluster.stop()
