"""A Ray cluster of our own on this machine: started with its own temp directory and token, stopped by pid.

``ray stop`` is never used: it ends every Ray cluster on the machine. Other people's clusters and their address files
stay untouched, since ours has a temp directory and ports of its own.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ebbtide.client.cluster_record import ClusterRecord, home
from ebbtide.system.direct_addresses import without_proxy
from ebbtide.system.interrupts import undisturbed
from ebbtide.system.process import is_alive
from ebbtide.system.runtime_dir import IPC, tmpdir_of_processes
from ebbtide.system.runtime_dir import runtime_dir as runtime_dir  # others ask for it here
from ebbtide_autoscaler.cluster import ray_start_hook
from ebbtide_autoscaler.cluster.cluster_processes import MARK, STOP_S, end, end_all, processes_of
from ebbtide_autoscaler.cluster.node_size import NodeSize

START_LOG = "ray_start.log"  # in the cluster's temp directory, which the next `up` removes
LINE = 500  # characters of Ray's last line that a message takes
START_S = 90.0  # 3-7 s on a quiet machine and up to 20 s on a loaded one (docs/origins.md)
OBJECT_STORE_BYTES = 200 << 20  # weights and batches never travel through it
PORTS = ("port", "dashboard-port", "dashboard-agent-listen-port", "metrics-export-port")


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


def unrecorded(pool: str | None) -> tuple[str, ...]:
    """Pools of this user's EBBTIDE_HOME that have processes here; of all names, or of this one alone."""
    names = [pool] if pool else sorted(path.parent.name for path in runtime_dir("any").parent.glob("*/owner"))
    mine = f"{home().resolve()} "
    return tuple(name for name in names if owner(name).startswith(mine) and strangers(name))


def strangers(pool: str) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of processes of clusters in the pool's folder."""
    return processes_of(str(runtime_dir(pool) / "ray-"))


def end_strangers(pool: str) -> int:
    """End them, with all that they start meanwhile; gives how many there were."""
    found = len(strangers(pool))
    if found:
        end_all(str(runtime_dir(pool) / "ray-"))
    return found


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
        **without_proxy(os.environ),
        "TMPDIR": tmpdir_of_processes(),
        # jobs say `python`: they must get the one that has ebbtide
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        # the default 2 s would add up to 2 s to every stop and restart of a gang
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": os.environ.get("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a rank's CUDA_VISIBLE_DEVICES is ours to set
        "RAY_prestart_worker_first_driver": "0",  # else one Python process per logical CPU starts with the first driver
        "HF_HUB_OFFLINE": "1",
        ray_start_hook.VARIABLE: os.environ.get(ray_start_hook.VARIABLE, ray_start_hook.PLACE),
        MARK: env["RAY_TMPDIR"],
    }


def start(pool: str, size: NodeSize) -> LocalRay:
    """Start a head node.

    Args:
        pool: names the temp directory.
        size: what Ray counts the node as.

    Raises:
        RayStartFailed: with the last line of Ray's output. Nothing goes on of what it began, after any exception.
    """
    folder = runtime_dir(pool)
    for old in (*folder.glob("ray-*"), folder / IPC):
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
        share = {} if size.share is None else size.share.to_environment()
        _run(command, _process_env(env) | share, temp_dir / START_LOG)
    except BaseException:  # also Ctrl-C: only this call knows what has begun
        with undisturbed():
            end_all(str(temp_dir))
        raise
    return LocalRay(
        address=f"127.0.0.1:{ports['port']}",
        dashboard_url=f"http://127.0.0.1:{ports['dashboard-port']}",
        temp_dir=str(temp_dir),
        env=env,
        pids=processes_of(str(temp_dir)),
    )


def _run(command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Let `ray start` come to its end. What it began may keep its output open, so that is a file and no pipe.

    Raises:
        RayStartFailed: it failed, was killed, or took too long; what it has begun may go on.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        code = child.wait(START_S)
    except subprocess.TimeoutExpired:
        raise RayStartFailed(_words(f"ray start did not come back within {START_S:g} s", log)) from None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if code < 0:
        raise RayStartFailed(_words(f"ray start was ended by signal {-code}", log))
    if code:
        raise RayStartFailed(_words(f"ray start ended with {code}", log))


def _words(what: str, log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1][-LINE:] if lines else "it printed nothing"
    return f"{what}: {last}\nAll that it printed: {log}"


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


def alive(record: ClusterRecord) -> bool:
    """Whether a process of the recorded cluster still runs."""
    return any(is_alive(pid, started) for pid, started in record.pids)


def stop(record: ClusterRecord) -> int:
    """End the cluster's processes and all that they started; gives how many had to be killed."""
    killed = end((*record.pids, *processes_of(record.temp_dir))) + end_all(record.temp_dir)
    deadline_s = time.monotonic() + STOP_S
    while alive(record) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return killed
