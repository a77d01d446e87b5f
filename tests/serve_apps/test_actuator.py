"""Seats on a real Ray cluster of three logical GPUs behind fences, with fake engines that hold real slot locks.

One scenario, in the order of a pool's life; each step says what the arbiter may rely on.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import serve
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.arbiter_link import ARBITER_NAME, NAMESPACE
from ebbtide.client.messages import Lease, PoolRuntime, ReplicaOrders, ReplicaPhase, ReplicaReport, SlotRef
from ebbtide.client.seat_actuator import SeatPlan
from ebbtide.pool.ids import EndpointName, SeatId
from ebbtide_serve.actuator import ServeActuator, application_of, seat_of
from ebbtide_serve.serve_internals import replica_actors
from ebbtide_serve.testing.fake_engine import FAKE_ENGINE
from tests.serve_apps.replica_under_test import gone

PORTS = {"port": 23479, "node-manager-port": 23481, "object-manager-port": 23482}
WORKER_PORTS = (25000, 25999)
GATEWAY_PORT = 23490


def test_a_seat_and_its_application_name_each_other() -> None:
    for seat in (SeatId("m/0"), SeatId("qwen-7b/12")):
        assert seat_of(application_of(seat)) == seat


@pytest.mark.parametrize("seat", ["m", "m/", "/1", "m/x", "a#b/1"])
def test_what_is_no_seat_is_refused(seat: str) -> None:
    with pytest.raises(ValueError, match="no seat"):
        application_of(SeatId(seat))


class StandInArbiter:
    """What a replica needs of an arbiter."""

    def __init__(self, work_dir: str) -> None:
        self._work_dir = work_dir
        self._grants: dict[str, tuple[int, ...]] = {}
        self._reports: dict[str, ReplicaReport] = {}
        self._asked: list[tuple[str, tuple[int, ...]]] = []

    def hello(self) -> PoolRuntime:
        return PoolRuntime("p", self._work_dir, self._work_dir + "/locks", 1)

    def grant(self, seat: str, indexes: tuple[int, ...]) -> None:
        self._grants[seat] = indexes

    def seat_lease(self, seat: str, replica: str, node: str, gpu_ids: tuple[int, ...]) -> Lease | None:
        self._asked.append((seat, gpu_ids))
        indexes = self._grants.get(seat, ())
        return Lease(seat, 5, tuple(SlotRef(node, i) for i in indexes)) if indexes else None

    def report_replica(self, report: ReplicaReport) -> ReplicaOrders:
        self._reports[report.seat] = report
        return ReplicaOrders()

    def seen(self) -> tuple[dict[str, ReplicaReport], list[tuple[str, tuple[int, ...]]]]:
        return self._reports, self._asked


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray cluster of its own; its processes are killed by pid, never by ``ray stop``."""
    work_dir = tmp_path_factory.mktemp("seats")
    ray_dir = Path(f"/tmp/ebb-{os.getpid()}")  # short: Ray's socket paths have 107 bytes at most
    environment = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(ray_dir)}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    ray_dir.mkdir()
    flags = [f"--{name}={port}" for name, port in PORTS.items()]
    flags += ["--num-cpus=4", "--num-gpus=3", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    flags += [f"--min-worker-port={WORKER_PORTS[0]}", f"--max-worker-port={WORKER_PORTS[1]}"]
    flags += ["--object-store-memory=83886080", f"--temp-dir={ray_dir}", "--block"]
    log = work_dir / "head.log"
    with log.open("wb") as out:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *flags]
        head = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline_s = time.monotonic() + 90
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None and time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        ray.init(address=f"127.0.0.1:{PORTS['port']}", namespace=NAMESPACE, log_to_driver=False)
        yield work_dir
        ray.shutdown()
    finally:
        for process in [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        subprocess.run(["rm", "-rf", str(ray_dir)], check=False)


class Pool:
    """Fences and the stand-in arbiter: just enough of a pool to grant slots to seats."""

    def __init__(self, work_dir: Path) -> None:
        # By value: a Ray worker cannot import a test.
        arbiter = ray.remote(num_cpus=0, max_concurrency=8)(StandInArbiter)
        self.arbiter = arbiter.options(name=ARBITER_NAME).remote(str(work_dir))
        self.lock_dir = work_dir / "locks"
        self.actuator = ServeActuator()
        self.fences: dict[int, PlacementGroup] = {}
        self.granted: dict[SeatId, tuple[int, ...]] = {}
        self.fence_all()

    def fence_all(self) -> None:
        """Fence what is free. The last free slot is known; among several, a task inside the fence is asked."""
        taken = {index for indexes in self.granted.values() for index in indexes}
        while free := {0, 1, 2} - taken - self.fences.keys():
            fence = placement_group([{"GPU": 1}], name=f"fence-{time.monotonic_ns()}", lifetime="detached")
            ray.get(fence.ready(), timeout=60)
            inside = PlacementGroupSchedulingStrategy(fence)
            ask = ray.remote(num_cpus=0, num_gpus=1)(_own_gpu).options(scheduling_strategy=inside)
            self.fences[free.pop() if len(free) == 1 else ray.get(ask.remote(), timeout=60)] = fence

    def grant(self, seat: SeatId, *indexes: int) -> None:
        self.granted[seat] = indexes
        ray.get(self.arbiter.grant.remote(seat, indexes))
        for index in indexes:
            remove_placement_group(self.fences.pop(index))

    def revoke(self, seat: SeatId) -> None:
        del self.granted[seat]
        ray.get(self.arbiter.grant.remote(seat, ()))

    def report(self, seat: SeatId) -> ReplicaReport | None:
        reports: dict[str, ReplicaReport] = ray.get(self.arbiter.seen.remote())[0]
        return reports.get(seat)

    def landed(self, seat: SeatId) -> tuple[int, ...]:
        asked: list[tuple[str, tuple[int, ...]]] = ray.get(self.arbiter.seen.remote())[1]
        return [gpu_ids for who, gpu_ids in asked if who == seat][-1]

    async def ready(self, seat: SeatId, but: str = "") -> ReplicaReport:
        """The report of the seat's replica, another one than ``but``, once it serves."""

        def is_ready() -> bool:
            report = self.report(seat)
            return report is not None and report.phase is ReplicaPhase.READY and report.replica != but

        await until(is_ready, 90.0)
        report = self.report(seat)
        assert report is not None
        return report

    async def close(self, seat: SeatId) -> None:
        """Close the seat, wait until no process is left, and fence its slots again."""
        await self.actuator.close_seat(seat)
        deadline_s = time.monotonic() + 30.0
        while seat in await self.actuator.living():
            assert time.monotonic() < deadline_s, f"{seat} is still there"
            await asyncio.sleep(0.05)
        self.revoke(seat)
        self.fence_all()


def _own_gpu() -> int:
    return int(ray.get_gpu_ids()[0])


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


def plan(seat: SeatId, *, slots: int = 1, **args: object) -> SeatPlan:
    return SeatPlan(
        seat=seat,
        endpoint=EndpointName(seat.split("/")[0]),
        model="",
        slots=slots,
        token="secret",
        drain_s=5.0,
        cache_dir="",
        engine=FAKE_ENGINE,
        engine_args={"own_process": True, **args},
    )


def replica_states() -> dict[str, Mapping[Any, int]]:
    """What Serve says of every seat; raises if one bad application blinds it for all."""
    return {
        name: deployment.replica_states
        for name, app in serve.status().applications.items()
        for deployment in app.deployments.values()
    }


@pytest.mark.ray
async def test_a_seat_s_life(cluster: Path) -> None:
    pool = Pool(cluster)
    actuator = pool.actuator
    first, other, wide = SeatId("m/0"), SeatId("m/1"), SeatId("wide/0")

    # 1. It lands on exactly the slot whose fence was taken away, and its engine's process holds the lock there.
    pool.grant(first, 1)
    await actuator.open_seat(plan(first))
    await actuator.open_seat(plan(first))  # level-triggered: repeating it changes nothing
    report = await pool.ready(first)
    assert pool.landed(first) == (1,)
    holder = probe(pool.lock_dir, SlotRef(report.node, 1))
    assert holder is not None and (holder.workload, holder.epoch) == (first, 5)
    assert len((await actuator.living())[first]) == 1

    # 2. kill -9 of its actor: the engine's process is gone, and Serve starts another at the same seat.
    engine = psutil.Process(holder.pid)
    os.kill(report.pid, signal.SIGKILL)
    await until(lambda: gone([engine]), 5.0)
    replaced = await pool.ready(first, but=report.replica)

    # 3. An arbiter that has restarted may open it again: the living replica is not replaced.
    actuator = pool.actuator = ServeActuator()
    names = (await actuator.living())[first]
    await actuator.open_seat(plan(first, tokens_per_s=7))
    assert (await actuator.living())[first] == names
    assert pool.report(first) is not None and pool.landed(first) == (1,)

    # 4. Closed, nothing is left of it: no actor, no lock, the slot can be fenced again.
    await pool.close(first)
    assert probe(pool.lock_dir, SlotRef(replaced.node, 1)) is None
    assert replica_states() == {"seat-m-0": {}}

    # 5. Opened again elsewhere, beside another seat.
    pool.grant(first, 2)
    await actuator.open_seat(plan(first))
    await pool.ready(first, but=replaced.replica)
    pool.grant(other, 0)
    await actuator.open_seat(plan(other))
    await pool.ready(other)
    assert (pool.landed(first), pool.landed(other)) == ((2,), (0,))
    assert len(replica_states()) == 2
    await pool.close(first)
    await pool.close(other)

    # 6. A replica of two slots gets both.
    pool.grant(wide, 0, 2)
    await actuator.open_seat(plan(wide, slots=2))
    report = await pool.ready(wide)
    assert pool.landed(wide) == (0, 2)
    assert all(probe(pool.lock_dir, SlotRef(report.node, index)) for index in (0, 2))
    await pool.close(wide)

    # 7. Opened while everything is fenced it waits; its pending actor can be killed after the close, at once.
    waiting = SeatId("m/2")
    pool.grant(waiting)
    await actuator.open_seat(plan(waiting))
    deadline_s = time.monotonic() + 20.0
    while waiting not in await actuator.living():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    await actuator.close_seat(waiting)
    for name in (await actuator.living()).get(waiting, ()):
        await actuator.kill(name)
        await actuator.kill(name)
    await pool.close(waiting)

    # 8. Serve gives up a seat whose engine never starts after three tries; closed and opened anew, it tries again.
    pool.grant(first, 1)
    await actuator.open_seat(plan(first, fail_start="no weights"))
    await until(lambda: serve.status().applications["seat-m-0"].status.value == "DEPLOY_FAILED", 90.0)
    failed = pool.report(first)
    assert failed is not None and failed.error == "no weights"
    await pool.close(first)
    pool.grant(first, 1)
    await actuator.open_seat(plan(first, fail_start="no weights"))
    await until(lambda: (r := pool.report(first)) is not None and r.replica != failed.replica, 30.0)
    await pool.close(first)

    # 9. The gateway: changed settings reach the running one.
    settings = {"internal_token": "secret", "host": "127.0.0.1", "port": GATEWAY_PORT, "endpoints": ["m"]}
    await actuator.start_gateway(json.dumps(settings))
    await until(lambda: serve.status().applications["ebbtide-gateway"].status.value == "RUNNING", 60.0)
    gateway = replica_actors()["ebbtide-gateway"]
    await actuator.start_gateway(json.dumps(settings | {"endpoints": ["m", "n"]}))
    await until(lambda: serve.status().applications["ebbtide-gateway"].status.value == "RUNNING", 60.0)
    assert replica_actors()["ebbtide-gateway"] == gateway
    handle = serve.get_deployment_handle("gateway", "ebbtide-gateway")
    assert str(GATEWAY_PORT) in await handle.address.remote()

    # 10. The end: only ours is deleted, and Serve's controller has survived all of it.
    await actuator.stop()
    await until(lambda: not serve.status().applications, 30.0)
