"""The systems: our pool, ``ray.serve.llm``, and ``vllm serve`` alone; each with one replica of the same model."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from benchmarks.overhead.load import Target
from benchmarks.pool_run import RunFailed, Status, running_pool, wait
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.cluster.node_size import NodeSize

ENGINE = {
    "enforce_eager": True,
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 256 << 20,
}
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
START_S = 300.0
POOL = "overhead-llm"  # names the folder of the cluster that ray.serve.llm gets
CONFIG = """
pool: {{name: overhead, slots: 1, num_cpus: 16, shared_dir: {out}/shared}}
gateway: {{port: {port}, hold: {{max_requests: 512}}}}
endpoints:
  - name: tiny
    model: {model}
    replicas: {{min: 0, max: 1}}
    target_requests: 64
    idle_after_s: {idle_after_s}
    down_after_s: 1
    min_uptime_factor: 0
    engine: {engine}
"""


@dataclass(frozen=True, slots=True)
class System:
    """One that runs: where its requests go, and the processes from which all of its processes descend."""

    target: Target
    roots: tuple[int, ...]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(target: Target, *, patience_s: float = START_S, alive: Callable[[], bool] = lambda: True) -> float:
    """Ask for one token until it is answered; seconds.

    Raises:
        RunFailed: nobody answered in time, or whoever ought to is not alive any more.
    """
    begun_s = time.monotonic()
    headers = {"content-type": "application/json"}
    if target.header:
        name, _, value = target.header.partition("=")
        headers[name] = value
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{target.url}/v1/completions", data=body, headers=headers)
    while time.monotonic() - begun_s < patience_s and alive():
        try:
            with urllib.request.urlopen(request, timeout=patience_s) as response:
                response.read()
                return time.monotonic() - begun_s
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise RunFailed(f"{target.name} did not answer within {time.monotonic() - begun_s:.0f} s; its log says more")


# ---- ours


@contextmanager
def our_pool(out: Path, model: Path, *, idle_after_s: float) -> Iterator[ClusterRecord]:
    """A pool of one slot whose endpoint is cold."""
    config = out / f"pool-{idle_after_s:g}.yaml"
    text = CONFIG.format(out=out, port=free_port(), model=model, idle_after_s=idle_after_s, engine=json.dumps(ENGINE))
    config.write_text(text)
    with running_pool(config) as record:
        yield record


def through_gateway(record: ClusterRecord) -> System:
    """The way that users take."""
    return System(Target("gateway", record.gateway_url), tuple(pid for pid, _ in record.pids))


def straight(record: ClusterRecord) -> System:
    """The replica's own port, as only the gateway knows it.

    Raises:
        RunFailed: the endpoint has no replica.
    """
    token = (Path(record.shared_dir) / "internal-token").read_text()
    status: Status = ArbiterLink().call("status", timeout_s=10.0) or {}
    for seat in status["endpoints"][0]["seats"]:
        for connection in psutil.Process(seat["pid"]).net_connections("tcp") if seat["pid"] else ():
            if connection.status == psutil.CONN_LISTEN:
                target = Target("replica", f"http://127.0.0.1:{connection.laddr.port}", f"x-ebbtide-token={token}")
                if _is_replica(target):
                    return System(target, tuple(pid for pid, _ in record.pids))
    raise RunFailed(f"no replica's port was found: {status.get('endpoints')}")


def _is_replica(target: Target) -> bool:
    name, _, value = target.header.partition("=")
    request = urllib.request.Request(f"{target.url}/health", headers={name: value})
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, http.client.HTTPException):  # the actor's other ports speak gRPC
        return False


def until_cold() -> None:
    """Wait until the endpoint has no replica and its slot is free again."""

    def cold(status: Status) -> bool:
        seats = status["endpoints"][0]["seats"]
        return all(seat["state"] == "cold" for seat in seats) and status["slots"][0]["state"] == "free"

    wait("the endpoint is cold", 120.0, cold)


# ---- the others


class RayLlm:
    """A cluster of its own with ``ray.serve.llm`` on it."""

    def __init__(self, out: Path, model: Path, log: TextIO) -> None:
        self.port = free_port()
        self._ray = local_cluster.start(POOL, NodeSize(slots=0, cpus=16))
        env = {**os.environ, **self._ray.env, "RAY_ADDRESS": self._ray.address}
        engine = json.dumps({**ENGINE, "distributed_executor_backend": "mp"})
        variables = json.dumps({**ENV, "VLLM_CACHE_ROOT": str(out / "rayllm-cache")})
        command = [
            sys.executable,
            "-m",
            "benchmarks.overhead.rayllm_app",
            str(model),
            str(self.port),
            engine,
            variables,
        ]
        self._child = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self._answer()

    def start(self) -> float:
        """Deploy; seconds until a request was answered."""
        return float(self._say("start")["answered_s"])

    def stop(self) -> None:
        """Delete the application."""
        self._say("stop")

    def system(self) -> System:
        """Where it answers, and what it runs."""
        return System(Target("ray.serve.llm", f"http://127.0.0.1:{self.port}"), tuple(pid for pid, _ in self._ray.pids))

    def close(self) -> None:
        """End the cluster."""
        self._child.kill()
        self._child.wait()
        local = self._ray
        local_cluster.stop(ClusterRecord(POOL, local.address, "", "", "", "", temp_dir=local.temp_dir, pids=local.pids))

    def _say(self, word: str) -> dict[str, float]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{word}\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RunFailed("ray.serve.llm did not come up; see its log")
        found: dict[str, float] = json.loads(line)
        return found


@contextmanager
def ray_llm(out: Path, model: Path, log: TextIO) -> Iterator[RayLlm]:
    """``ray.serve.llm`` with nothing deployed yet."""
    found = RayLlm(out, model, log)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def vllm_serve(out: Path, model: Path, log: TextIO) -> Iterator[System]:
    """``vllm serve``, unmodified, with the engine in one process as ours has it."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.overhead.vllm_command", "serve", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--served-model-name", "tiny", "--disable-log-stats"]
    for name, value in ENGINE.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(out / "vllm-cache")}
    command += ["--distributed-executor-backend", "uni"]
    process = subprocess.Popen(command, env={**os.environ, **ENV, **own}, stdout=log, stderr=log)
    try:
        system = System(Target("vllm serve", f"http://127.0.0.1:{port}"), (process.pid,))
        ask(system.target, alive=lambda: process.poll() is None)
        yield system
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in psutil.wait_procs(children, timeout=5)[1]:
            child.kill()
