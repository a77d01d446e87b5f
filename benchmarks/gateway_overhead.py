"""What the gateway costs: ``python -m benchmarks.gateway_overhead [--quick]``.

The same tiny model, one replica each: through our gateway, straight to that replica's own port, under
``ray.serve.llm``, and under ``vllm serve`` alone; at 1, 16, 64 and 256 streams, in rounds that take turns, so that what
disturbs the machine disturbs all. The load comes from ``vllm bench serve``, unmodified. CPU is that of all processes of
a system, its Ray included, but for the engine's; per 1,000 generated tokens. The engine of ``ray.serve.llm`` has a
worker process of its own, for it accepts no other on a CPU: that is engine, and does not count.

First, with nothing else running, replicas start from cold by turns: ours from the request that wakes it to its answer,
``ray.serve.llm``'s from ``serve.run`` to its first answer, both on a cluster with Serve up.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.overhead.cpu import spent
from benchmarks.overhead.load import Generator, Load, generator
from benchmarks.overhead.systems import (
    System,
    ask,
    our_pool,
    ray_llm,
    straight,
    through_gateway,
    until_cold,
    vllm_serve,
)
from benchmarks.rows import Bar, Row, result, row, write

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "overhead"
LOADS = (Load(1, 40, 32), Load(16, 64, 64), Load(64, 192, 48), Load(256, 512, 32))
QUICK = (Load(1, 4, 32), Load(16, 32, 32))
ROUNDS, STARTS = 3, 2
TTFT_GOAL_MS = 5.0
Found = dict[tuple[str, int], dict[str, list[float]]]


def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """All rows and the three bars.

    Raises:
        RunFailed: a system did not come up, or a request failed.
    """
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.environ["EBBTIDE_HOME"] = str(OUT / "home")
    model = ROOT / "out" / "models" / "tiny"
    subprocess.run([sys.executable, "-m", "ebbtide_serve.examples.tiny_model", str(model)], check=True)
    loads, rounds, starts = (QUICK, 1, 1) if quick else (LOADS, ROUNDS, STARTS)
    found: Found = defaultdict(lambda: defaultdict(list))
    starts_s: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        log = stack.enter_context((OUT / "log.txt").open("w"))
        llm = stack.enter_context(ray_llm(OUT, model, log))
        with our_pool(OUT, model, idle_after_s=2.0) as record:
            for number in range(starts):
                starts_s["gateway"].append(ask(through_gateway(record).target))
                until_cold()
                starts_s["ray.serve.llm"].append(llm.start())
                if number < starts - 1:
                    llm.stop()
        record = stack.enter_context(our_pool(OUT, model, idle_after_s=3600.0))
        alone = stack.enter_context(vllm_serve(OUT, model, log))
        load = stack.enter_context(generator(model, OUT, log))
        ask(through_gateway(record).target)
        systems = (through_gateway(record), straight(record), llm.system(), alone)
        for size in loads:
            for number in range(rounds + 1):
                for system in systems:
                    one = _run(load, system, size if number else Load(size.streams, size.streams, 8))
                    what = f"round {number} of {rounds}" if number else "warm-up"
                    print(f"  {size.streams} streams, {what}, {system.target.name}", flush=True)
                    for metric, value in one.items() if number else ():  # the first round warms up
                        found[system.target.name, size.streams][metric].append(value)
    return _rows(found, starts_s), _bars(found, starts_s)


def _run(load: Generator, system: System, size: Load) -> dict[str, float]:
    """One run: milliseconds and CPU."""
    before = spent(system.roots)
    done = load.run(system.target, size)
    took_s = spent(system.roots).since(before)
    thousands = done["total_output_tokens"] / 1000
    path_s = sum(seconds for name, seconds in took_s.items() if _on_path(name))
    return {
        "TTFT p50": done["median_ttft_ms"],
        "TTFT p99": done["p99_ttft_ms"],
        "total p50": done["median_e2el_ms"],
        "total p99": done["p99_e2el_ms"],
        "output tokens/s": done["output_throughput"],
        "CPU/1000 tokens, not engine": 1000 * sum(took_s.values()) / thousands,
        "CPU/1000 tokens, on the path": 1000 * path_s / thousands,
    }


def _on_path(name: str) -> bool:
    """Whether requests go through the process: a server's, or a Serve actor that is not the controller."""
    if name.startswith("ray::"):
        return any(part in name for part in ("ServeReplica", "ProxyActor", "Replica")) and "Controller" not in name
    return name.startswith("python")


def _unit(metric: str) -> str:
    return "1/s" if metric.endswith("tokens/s") else "ms"


def _rows(found: Found, starts_s: dict[str, list[float]]) -> list[Row]:
    rows = [
        row(f"{name}, {streams} streams", metric, _unit(metric), values, digits=2)
        for (name, streams), metrics in found.items()
        for metric, values in metrics.items()
    ]
    rows += [row(name, "replica start, asked to answered", "s", values) for name, values in starts_s.items()]
    for (name, streams), metrics in list(found.items()):
        if name == "gateway":
            other = found["replica", streams]["TTFT p50"]
            added = [ours - theirs for ours, theirs in zip(metrics["TTFT p50"], other, strict=True)]
            rows.append(row(f"gateway - replica, {streams} streams", "TTFT p50", "ms", added, digits=2))
    return rows


def _bars(found: Found, starts_s: dict[str, list[float]]) -> list[Bar]:
    pairs = zip(found["gateway", 1]["TTFT p50"], found["replica", 1]["TTFT p50"], strict=True)
    added_ms = _median([ours - theirs for ours, theirs in pairs])
    cpu = "CPU/1000 tokens, not engine"
    worst = max(
        _median(metrics[cpu]) / _median(found["ray.serve.llm", streams][cpu])
        for (name, streams), metrics in list(found.items())
        if name == "gateway"
    )
    ratio = _median(starts_s["gateway"]) / _median(starts_s["ray.serve.llm"])
    return [
        Bar("gateway_ttft_1", f"adds under {TTFT_GOAL_MS:g} ms p50", round(added_ms, 2), added_ms < TTFT_GOAL_MS),
        Bar("gateway_cpu_vs_ray_llm", "at most 1 x ray.serve.llm at every load", round(worst, 3), worst <= 1.0),
        Bar("replica_start", "at most 1 x ray.serve.llm", round(ratio, 3), ratio <= 1.0),
    ]


def _median(values: list[float]) -> float:
    return row("", "", "", values).median


def main() -> None:
    """Print; write to results/ unless it is a quick run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_overhead")
    parser.add_argument("--quick", action="store_true", help="1 and 16 streams, one round; written to out/")
    options = parser.parse_args()
    rows, bars = measure(options.quick)
    for one in rows:
        print(f"{one.case:28} {one.metric:34} {one.median:10} {one.unit:4} ({one.min} .. {one.max}, n={one.n})")
    for bar in bars:
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value}, goal: {bar.goal}")
    found = result("gateway_overhead", "python -m benchmarks.gateway_overhead", rows, bars)
    print(write(found, OUT) if options.quick else write(found))


if __name__ == "__main__":
    main()
