"""What the comparison counts as a system's CPU, and when its bars hold."""

import subprocess
import sys
import time
from collections import defaultdict

import psutil

from benchmarks.gateway_overhead import Found, _bars, _on_path
from benchmarks.overhead.cpu import spent

BUSY = "import time\nwhile time.process_time() < 0.5: pass\ntime.sleep(60)\n"
PARENT = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {BUSY!r}])\ntime.sleep(60)\n"


def test_the_cpu_of_a_system_is_that_of_all_its_descendants() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT])
    try:
        deadline_s = time.monotonic() + 10
        before = spent([process.pid])
        while len(spent([process.pid]).by_process) < 2 or sum(spent([process.pid]).since(before).values()) < 0.3:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.wait()


def test_an_engine_and_what_it_starts_do_not_count() -> None:
    code = "import setproctitle, time\nsetproctitle.setproctitle('VLLM::EngineCore')\ntime.sleep(60)\n"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline_s = time.monotonic() + 10
        while spent([process.pid]).by_process:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_costs_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert spent([process.pid]).by_process == {}


def test_proxies_and_replicas_are_on_the_path_and_the_rest_of_ray_is_not() -> None:
    assert _on_path("ray::ProxyActor") and _on_path("ray::ServeReplica:seat-tiny-0:replica") and _on_path("python3.11")
    assert not any(_on_path(name) for name in ("ray::ServeController", "raylet", "gcs_server", "ray::Arbiter"))


def found(*, ours_ms: float, replica_ms: float, ours_cpu: float, ray_cpu: float) -> Found:
    table: Found = defaultdict(lambda: defaultdict(list))
    table["gateway", 1] |= {"TTFT p50": [ours_ms], "CPU/1000 tokens, not engine": [ours_cpu]}
    table["replica", 1] |= {"TTFT p50": [replica_ms], "CPU/1000 tokens, not engine": [ours_cpu]}
    table["ray.serve.llm", 1] |= {"TTFT p50": [99.0], "CPU/1000 tokens, not engine": [ray_cpu]}
    return table


def test_bars_hold_or_not() -> None:
    starts = {"gateway": [20.0, 22.0, 21.0], "ray.serve.llm": [50.0, 52.0, 51.0]}
    good = _bars(found(ours_ms=22.0, replica_ms=20.0, ours_cpu=100.0, ray_cpu=200.0), starts)
    assert [(bar.bar, bar.met) for bar in good] == [
        ("gateway_ttft_1", True),
        ("gateway_cpu_vs_ray_llm", True),
        ("replica_start", True),
    ]
    bad = _bars(
        found(ours_ms=26.0, replica_ms=20.0, ours_cpu=300.0, ray_cpu=200.0),
        dict(zip(starts, [[60.0], [50.0]], strict=True)),
    )
    assert [bar.met for bar in bad] == [False, False, False]
