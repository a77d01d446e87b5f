"""A small cluster with the fake arbiter, for the tests of the Ray shell; one for all modules that share it."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.client.messages import ControllerPhase

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0  # a gang starts in 7 s on a quiet machine, and took 50 s on one with a load of 10
DRIVER = Path(__file__).with_name("pool_driver.py")


def wait_until(
    condition: Callable[[], Any], *, what: str, story: Callable[[], str] = str, timeout_s: float = START_S
) -> Any:
    """The first true answer of ``condition``; ``story`` tells where things stand, should there be none."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s for {what}\n{story()}")
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not, unless other threads of it still do: they keep its slot lock)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class FakePool:
    """The cluster, its fake arbiter, and the drivers that a test has started."""

    arbiter: Any
    node: str
    env: dict[str, str]
    shared_dir: Path
    lock_dir: Path
    temp_dir: str
    others: tuple[str, ...] = ()  # further nodes
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def call(self, method: str, *args: object) -> Any:
        """Ask the fake arbiter."""
        import ray

        return ray.get(getattr(self.arbiter, method).remote(*args), timeout=30)

    def submit(self, name: str, args: str, settings: str) -> subprocess.Popen[bytes]:
        """Start a driver and wait until its job is registered."""
        before = self.call("job", name)
        printed = self.shared_dir / f"driver-{name}.log"
        with printed.open("a") as file:
            driver = subprocess.Popen(
                [sys.executable, str(DRIVER), name, args, settings],
                env=self.env,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.shared_dir,
            )
        self.drivers.append(driver)

        def registered() -> bool:
            now = self.call("job", name)
            return now is not None and (before is None or now.incarnation != before.incarnation)

        self.until(name, lambda: registered() or driver.poll() is not None, "it to register")
        assert driver.poll() is None, printed.read_text()
        return driver

    def finish(self, driver: subprocess.Popen[bytes], name: str) -> str:
        """Wait until the driver has ended; all that the drivers of the job have printed."""
        self.until(name, lambda: driver.poll() is not None, "its driver to end")
        return (self.shared_dir / f"driver-{name}.log").read_text()

    def until(self, name: str, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something about a job."""
        return wait_until(condition, what=f"job {name}: {what}", story=lambda: self.story(name))

    def story(self, name: str) -> str:
        """Where a job stands, by everybody who has said something."""
        job = self.call("job", name)
        lines = [f"job {name} is not registered"]
        if job is not None:
            orders = f"want {job.want.value}, directive {job.number}, lease {job.lease}, kill_gang {job.kill_gang}"
            lines = [f"incarnation {job.incarnation}: {orders}, outcome {job.outcome!r} {job.detail!r}"]
            lines += [f"controller: {report}" for report in job.controllers[-3:]]
            lines += [f"alive {alive(report.pid)}: {report}" for report in job.ranks.values()]
        printed = self.shared_dir / f"driver-{name}.log"
        lines += ["the driver has printed:", printed.read_text()[-3000:]] if printed.exists() else []
        return "\n".join([*lines, f"load {os.getloadavg()}"])

    def grant(self, name: str, *indexes: int) -> Any:
        """A new gang."""
        return self.call("grant", name, self.node, indexes)

    def ranks(self, name: str, phase: Any, world: int) -> dict[int, Any]:
        """The reports of a whole gang in ``phase``."""

        def there() -> Any:
            found = self.call("job", name).ranks
            return found if len(found) == world and all(r.phase is phase for r in found.values()) else None

        return self.until(name, there, f"{world} ranks to be {phase.value}")  # type: ignore[no-any-return]

    def spilled(self, name: str) -> None:
        """Wait until a parked job's state is committed."""

        def done() -> bool:
            rank = self.call("job", name).ranks[0]
            return bool(rank.durable_step == rank.step)

        self.until(name, done, "its state to be committed")

    def no_gang(self, name: str, epoch: int) -> Any:
        """Wait until the controller says that nothing is left of the gang of this lease; its report."""

        def said() -> Any:
            found = self.controller(name)
            gone = found is not None and found.phase is ControllerPhase.NO_GANG and found.lease_epoch == epoch
            return found if gone else None

        return self.until(name, said, f"no gang to be left of lease {epoch}")

    def seen_by_driver(self) -> None:
        """Wait until a driver has looked at the present state, and so has printed it: it looks twice a second."""
        before = self.call("looked")
        wait_until(lambda: self.call("looked") >= before + 2, what="the driver to look twice")

    def controller(self, name: str) -> Any:
        """The controller's last report; None before the first."""
        reports = self.call("job", name).controllers
        return reports[-1] if reports else None

    def controllers(self) -> list[psutil.Process]:
        """Processes of Train controllers on this cluster, and on no other of this machine."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.NoSuchProcess):
                if "ray::GangController" in " ".join(process.info["cmdline"] or ()):
                    raylet = process.parent()
                    if raylet is not None and self.temp_dir in " ".join(raylet.cmdline()):
                        found.append(process)
        return found


@contextmanager
def running_pool(folder: Path, *, dashboard: bool = False, nodes: int = 1) -> Iterator[FakePool]:
    """A cluster of eight logical CPUs per node, whose shared directory is ``folder``."""
    import ray
    from ray.cluster_utils import Cluster

    from ebbtide.agent.host_memory.regions_folder import regions_folder
    from ebbtide.agent.slot_identity import MACHINE_LABEL
    from ebbtide.client.arbiter_link import ARBITER_NAME, NAMESPACE
    from ebbtide.client.ray_auth import adopt
    from tests.train_jobs.fake_arbiter import FakeArbiter

    before = dict(os.environ)
    # Agents name their host memory after this folder; what another run has left, or uses, is none of this one's.
    unique = f"fake-{os.getpid()}-{secrets.token_hex(4)}"
    os.environ.pop("RAY_ADDRESS", None)
    # Workers import the tests; no worker is started before somebody needs it, and no token is left in anybody's home.
    # Jobs say `python`: they must get the one that has ebbtide.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    adopt(
        {
            "PYTHONPATH": str(ROOT),
            "RAY_prestart_worker_first_driver": "0",
            "RAY_AUTH_MODE": "disabled",
            "PATH": path,
        }
    )
    cluster = None
    with tempfile.TemporaryDirectory(prefix="ebt-", dir="/tmp") as temp_dir:  # short: socket names are limited
        try:
            os.environ["RAY_TMPDIR"] = temp_dir
            node = {"num_cpus": 8, "object_store_memory": 80 << 20}
            cluster = Cluster(head_node_args={**node, "include_dashboard": dashboard}, initialize_head=True)
            # Each stands for a machine: its agent has a folder of its own for host memory.
            labels = [{MACHINE_LABEL: f"machine-{index}"} for index in range(1, nodes)]
            others = tuple(str(cluster.add_node(**node, labels=one).node_id) for one in labels)
            ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
            address = ray.get_runtime_context().gcs_address
            lock_dir = folder / unique / "locks"
            arbiter = (
                ray.remote(FakeArbiter)
                .options(name=ARBITER_NAME, namespace=NAMESPACE, num_cpus=0)
                .remote(str(folder), str(lock_dir))
            )
            env = {**os.environ, "RAY_ADDRESS": address}
            pool = FakePool(arbiter, ray.get_runtime_context().get_node_id(), env, folder, lock_dir, temp_dir, others)
            yield pool
            for driver in pool.drivers:
                if driver.poll() is None:
                    driver.kill()
                driver.wait()
        finally:
            ray.shutdown()
            if cluster is not None:
                cluster.shutdown()
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(regions_folder(unique, "any").parent, ignore_errors=True)


@pytest.fixture(scope="session")
def fake_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakePool]:
    """One for all tests of a process; a module that uses it has the mark ``shares_cluster``."""
    with running_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool
