"""A Ray cluster of our own on this machine: started with its own temp directory and token, stopped by pid.

``ray stop`` is never used: it ends every Ray cluster on the machine. Other people's clusters and their address files
stay untouched, since ours has a temp directory and ports of its own.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.system.process import started_ticks
from ebbtide.system.runtime_dir import runtime_dir as runtime_dir  # others ask for it here
from ebbtide_autoscaler.cluster.node_size import NodeSize

START_S = 90.0  # 3-7 s on a quiet machine and up to 20 s on a loaded one (docs/origins.md)
STOP_S = 5.0  # from SIGTERM to SIGKILL; a raylet with --block ignored SIGTERM for 20 s (docs/origins.md)
OBJECT_STORE_BYTES = 200 << 20  # weights and batches never travel through it
PORTS = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port", "metrics-export-port")


class RayStartFailed(RuntimeError):
    """Ray did not come up; the message ends with what it printed."""


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A running cluster."""

    address: str
    dashboard_url: str
    temp_dir: str
    env: Mapping[str, str]
    pids: tuple[tuple[int, int], ...]


def own(pool: str, owner: str) -> None:
    """Write down who starts a cluster in the pool's folder, before it starts."""
    folder = runtime_dir(pool)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "owner").write_text(owner)


def owner(pool: str) -> str:
    """Who started a cluster there last; "" if nobody said."""
    try:
        return (runtime_dir(pool) / "owner").read_text()
    except OSError:
        return ""


def strangers(pool: str) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of Ray processes that run in the pool's folder."""
    return _pids_of(str(runtime_dir(pool) / "ray-"))


def cluster_env(token_file: Path, temp_dir: Path) -> dict[str, str]:
    """What every process needs in order to join the cluster."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_TMPDIR": str(temp_dir),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _process_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of Ray's processes, which every worker inherits."""
    return {
        **{name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")},
        **env,
        # jobs say `python`: they must get the one that has ebbtide
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        # the default 2 s would add up to 2 s to every stop and restart of a gang
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": os.environ.get("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a rank's CUDA_VISIBLE_DEVICES is ours to set
        "RAY_prestart_worker_first_driver": "0",  # else one Python process per logical CPU starts with the first driver
        "HF_HUB_OFFLINE": "1",
    }


def start(pool: str, size: NodeSize) -> LocalRay:
    """Start a head node.

    Args:
        pool: names the temp directory.
        size: what Ray counts the node as.

    Raises:
        RayStartFailed: with the tail of Ray's output.
    """
    folder = runtime_dir(pool)
    for old in folder.glob("ray-*"):
        shutil.rmtree(old, ignore_errors=True)
    temp_dir = folder / f"ray-{secrets.token_hex(3)}"  # its own: a process of an earlier cluster may still be leaving
    temp_dir.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_hex(32))
    env = cluster_env(token_file, temp_dir)
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    command += [f"--temp-dir={temp_dir}", f"--object-store-memory={OBJECT_STORE_BYTES}", "--dashboard-host=127.0.0.1"]
    command += ["--disable-usage-stats", "--include-dashboard=true"]
    command += [f"--num-gpus={size.slots}", f"--num-cpus={size.cpus}"]
    try:
        done = subprocess.run(
            command,
            env=_process_env(env) | (size.share.to_environment() if size.share is not None else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_S,
            text=True,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        end(_pids_of(str(temp_dir)))
        raise RayStartFailed(f"ray start did not come back within {START_S:g} s: {error.output}") from error
    if done.returncode:
        raise RayStartFailed(f"ray start ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return LocalRay(
        address=f"127.0.0.1:{ports['port']}",
        dashboard_url=f"http://127.0.0.1:{ports['dashboard-port']}",
        temp_dir=str(temp_dir),
        env=env,
        pids=_pids_of(str(temp_dir)),
    )


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, outside Ray's worker range of 10002-19999."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if not 10002 <= port <= 19999:
                found.append(port)
        return found


def _pids_of(temp_dir: str) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of the processes that name ``temp_dir`` on their command line."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(temp_dir in part for part in process.info["cmdline"] or ()):
            started = started_ticks(process.info["pid"])
            if started is not None:
                found.append((process.info["pid"], started))
    return tuple(found)


def alive(record: ClusterRecord) -> bool:
    """Whether a process of the recorded cluster still runs."""
    return any(started_ticks(pid) == started for pid, started in record.pids)


def stop(record: ClusterRecord) -> int:
    """End the cluster's processes and all that they started; gives how many had to be killed."""
    killed = end((*record.pids, *_pids_of(record.temp_dir)))
    deadline_s = time.monotonic() + STOP_S
    while alive(record) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return killed


def end(known: Iterable[tuple[int, int]]) -> int:
    """End processes given by (pid, start time), and all their children."""
    ours = {pid for pid, started in known if started_ticks(pid) == started}
    processes: dict[int, psutil.Process] = {}
    for pid in ours:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            processes.update({child.pid: child for child in [parent, *parent.children(recursive=True)]})
    for process in processes.values():
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, rest = psutil.wait_procs(list(processes.values()), timeout=STOP_S)
    for process in rest:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(rest, timeout=STOP_S)
    return len(rest)
