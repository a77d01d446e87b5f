"""A Ray cluster of a head and two machines with two logical GPUs each, made of processes that can be killed one by one.

It is started by ``ray start`` as an operator does it, and this process never joins it: a driver is aborted by Ray when
its GCS is lost, and a harness must outlive what it kills. Everything has ports, a token and a short temp directory of
its own and is ended by pid. A process that died is started again with its own command line and environment, as the
supervisor of a real installation would.

With ``redis=True`` the GCS keeps its state in a redis-server of our own, and can be killed and started again; without,
the whole cluster is lost with it (facts of Ray 2.60: a GCS that restarts in memory has another cluster id).
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ebbtide.system.process import is_alive, kill_exactly, started_ticks
from tests.integration.two_nodes import ENVIRONMENT, MACHINE_LABEL, OBJECT_STORE_BYTES

START_S = 120.0  # one `ray start`: 3-7 s on a quiet machine, 20 s on a loaded one
START_ATTEMPTS = 3  # `ray start` itself gives up after a fixed 30 s; a machine's supervisor would start it again
GPUS = 2
CPUS = 8
LAUNCH = (
    "from ray._private import ray_constants; "
    "ray_constants.DEFAULT_RUNTIME_ENV_DIR_NAME = 'runtime_resources_{machine}'; "
    "from ray.scripts.scripts import main; main()"
)
"""`ray start` with a folder for unpacked working directories of its own: nodes of one machine share the session's, and
each unpacks a job's over that of the others (``overwrite=True`` in Ray 2.60), under the feet of the job's driver."""
FAST_DEATH = {
    # A restarted GCS gives raylets so long to come back; the default of 60 s would be waited for by nobody.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "30",
    "RAY_gcs_failover_worker_reconnect_timeout": "10",
    # The GCS keeps the last 100,000 tasks, which Train's polls alone take more than an hour to fill at five a second
    # for each rank: it would grow all the time and not show whether anything else does. A thousand are there within a
    # minute; five thousand took most of the life of a GCS that is killed every ten minutes, 20 MB of them.
    "RAY_task_events_max_num_task_in_gcs": "1000",
    # And it keeps 100,000 dead actors: rounds of kills make some fifteen a minute, so by default it only grows.
    "RAY_maximum_gcs_destroyed_actor_cached_count": "200",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A living process, by what cannot be reused; ``command`` and ``env`` are what it was started with."""

    pid: int
    started: int
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it can still do anything."""
        return is_alive(self.pid, self.started)

    @property
    def title(self) -> str:
        """What it calls itself now: Ray's workers rename themselves."""
        return " ".join(self.command).strip()


def process(pid: int) -> Process | None:
    """The process that has ``pid`` now; None if it is gone or not ours to see."""
    started = started_ticks(pid)
    try:
        seen = psutil.Process(pid)
        command, env = tuple(seen.cmdline()), seen.environ()
    except (psutil.Error, OSError):
        return None
    return Process(pid, started, command, env) if started is not None else None


@dataclass
class Cluster:
    """The running cluster. ``start`` makes it; ``stop`` ends every process of it."""

    redis: bool = True
    temp_dir: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ebk-", dir="/tmp")))
    address: str = ""
    machines: dict[str, Process] = field(default_factory=dict)  # raylet by machine; the head is "head"
    _redis: "subprocess.Popen[bytes] | None" = None
    _env: dict[str, str] = field(default_factory=dict)
    _gcs: Process | None = None
    _monitors: dict[str, list[Process]] = field(default_factory=dict)  # log monitors, by machine

    # ---- making it

    def start(self) -> None:
        """Head first, then machines "a" and "b"."""
        token = self.temp_dir / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")},
            **ENVIRONMENT,
            **FAST_DEATH,
            "RAY_TMPDIR": str(self.temp_dir),
            "RAY_AUTH_TOKEN_PATH": str(token),
            "PYTHONFAULTHANDLER": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        if self.redis:
            self._start_redis()
        port = a_port()
        self._ray_start("head", "--head", f"--port={port}", "--num-gpus=0", "--num-cpus=4", *self._head_ports())
        self.address = f"127.0.0.1:{port}"
        self._gcs = self._the("gcs_server")
        for machine in ("a", "b"):  # one after the other: two `ray start` at once on one host get in each other's way
            self.add_machine(machine)

    def _head_ports(self) -> list[str]:
        names = ("dashboard-port", "ray-client-server-port")
        return [f"--{name}={a_port()}" for name in names] + ["--include-dashboard=true", "--dashboard-host=127.0.0.1"]

    def add_machine(self, machine: str) -> Process:
        """Start a node under this machine's name; it has another node id each time."""
        labels = f"{MACHINE_LABEL}={machine}"
        ours = [f"--num-gpus={GPUS}", f"--num-cpus={CPUS}", f"--labels={labels}"]
        return self._ray_start(machine, f"--address={self.address}", *ours)

    def _ray_start(self, machine: str, *arguments: str) -> Process:
        before = {one.pid for one in self.all("raylet")}
        label = f'"{MACHINE_LABEL}": "{machine}"' if machine != "head" else ""
        command = [sys.executable, "-c", LAUNCH.format(machine=machine), "start", "--node-ip-address=127.0.0.1"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
        command += ["--min-worker-port=0", "--max-worker-port=0"]  # several raylets on one machine: any free port
        command += [f"--{name}={a_port()}" for name in ("dashboard-agent-listen-port", "metrics-export-port")]
        command += [*arguments] + ([f"--temp-dir={self.temp_dir}"] if machine == "head" else [])
        for monitor in self._monitors.pop(machine, ()):
            _kill_tree(monitor)
        monitored = {one.pid for one in self._log_monitors()}
        for _ in range(START_ATTEMPTS):
            done = subprocess.run(
                command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=START_S,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to handle: the cluster is ended by pid, after the judge
            )
            came = [one for one in self.all("raylet") if one.pid not in before and label in one.title]
            if done.returncode == 0:
                self._monitors[machine] = [one for one in self._log_monitors() if one.pid not in monitored]
                self.machines[machine] = came[0]
                return came[0]
            for late in came:
                _kill_tree(late)
        raise AssertionError(f"ray start of {machine} gave {done.returncode}:\n{done.stdout[-2000:]}")

    def _start_redis(self) -> None:
        port = a_port()
        folder = self.temp_dir / "redis"
        folder.mkdir()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command += ["--appendonly", "no", "--logfile", str(folder / "log")]
        self._redis = subprocess.Popen(command, start_new_session=True)
        deadline_s = time.monotonic() + 10
        while not _listens(port):
            assert time.monotonic() < deadline_s, f"redis-server does not listen; see {folder / 'log'}"
            time.sleep(0.02)
        self._env["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{port}"

    # ---- looking at it

    @property
    def env(self) -> dict[str, str]:
        """For processes that talk to the cluster."""
        names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED", "PATH")
        return {name: self._env[name] for name in names}

    def processes(self) -> list[Process]:
        """All processes that belong to the cluster, workers and what they started too."""
        found = []
        for seen in psutil.process_iter():
            one = process(seen.pid)
            if one is not None and one.env.get("RAY_TMPDIR") == str(self.temp_dir) and one.pid != os.getpid():
                found.append(one)
        return found

    def all(self, executable: str) -> list[Process]:
        """Living processes whose program is called so."""
        return [one for one in self.processes() if one.command and Path(one.command[0]).name == executable]

    def titled(self, title: str) -> list[Process]:
        """Ray workers whose title holds ``title`` (``ray::ServeController``), wherever they run."""
        return [one for one in self.processes() if one.title.startswith("ray::") and title in one.title]

    def _log_monitors(self) -> list[Process]:
        """`ray start` leaves one beside each raylet: no child of it, and it outlives it, reading all logs for ever."""
        return [one for one in self.processes() if any(part.endswith("log_monitor.py") for part in one.command)]

    def _the(self, executable: str) -> Process:
        (found,) = self.all(executable)
        return found

    # ---- breaking it

    def gcs(self) -> Process:
        """The GCS that runs now, or ran last."""
        assert self._gcs is not None
        return self._gcs

    def restart_gcs(self) -> None:
        """Start the GCS again as it was, at the same port; only with Redis does that help."""
        assert self._gcs is not None and not self._gcs.alive
        log = (self.temp_dir / f"gcs-{time.time():.0f}.log").open("wb")
        with log:
            child = subprocess.Popen(
                list(self._gcs.command), env=dict(self._gcs.env), stdout=log, stderr=log, start_new_session=True
            )
        port = int(self.address.rpartition(":")[2])
        deadline_s = time.monotonic() + 30
        while not _listens(port):
            assert child.poll() is None and time.monotonic() < deadline_s, f"the GCS does not come back: {log.name}"
            time.sleep(0.05)
        found = process(child.pid)
        assert found is not None
        self._gcs = found

    def kill_machine(self, machine: str) -> None:
        """kill -9 of everything on a machine at once, as a power cut would."""
        _kill_tree(self.machines.pop(machine))
        for monitor in self._monitors.pop(machine, ()):
            _kill_tree(monitor)

    def stop(self, *, keep_files: bool = False) -> None:
        """End every process of the cluster, by pid."""
        for _ in range(3):  # a process may have started another meanwhile
            for one in self.processes():
                kill_exactly(one.pid, one.started)
            time.sleep(0.2)
        if self._gcs is not None:
            kill_exactly(self._gcs.pid, self._gcs.started)
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait(10)
        self.machines.clear()
        if not keep_files:
            shutil.rmtree(self.temp_dir, ignore_errors=True)


def _kill_tree(root: Process) -> None:
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(root.pid)
        for one in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)


def a_port() -> int:
    """A free port outside Ray's range for workers."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if not 10002 <= port <= 19999:
            return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
