"""How fast a model's files come to a GPU, against what storage and link can do and against other loaders.

Needs PyTorch, numpy and xxhash; kvikio, fastsafetensors, safetensors and fio are used where they are. Rounds of all
loaders are interleaved, each round in another order, and every load is compared bit by bit with what was stored. Cold
loads come after the page cache was dropped (by root; else the files' pages are given up by advice, and the result says
so), warm ones when it holds all files. The time is bounded: a slow disk gets a smaller model, or fewer rounds.

usage: PYTHONPATH=platform python -m benchmarks.gpu.storage [--quick] [--directory D] [--out FOLDER] [--gb N]
       PYTHONPATH=platform python -m benchmarks.gpu.storage --dry-run-cpu     (does the script run? Measures nothing.)
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.gpu.ceilings import (
    fio_gb_per_s,
    forget,
    link_gb_per_s,
    remember,
    resident,
    storage_gb_per_s,
    synchronize,
)
from benchmarks.gpu.loaders import FAST, OURS, PLAIN, Loader, loaders
from benchmarks.gpu.machine import filesystem, hardware
from benchmarks.gpu.weights import Shapes, Weights, make_weights
from benchmarks.rows import Bar, Row, result, row, write
from ebbtide.storage.device.device_queue import pinned_pool, queue_for
from ebbtide.storage.device.gds_probe import GdsVerdict, probe_gds
from ebbtide.storage.memory.buffer_pool import BufferPool
from evidence.provenance import RESULTS

NAME = "gpu_storage"
COMMAND = "PYTHONPATH=platform python -m benchmarks.gpu.storage"
GOAL_RATIO = 0.90
ROUNDS, BUDGET_S = 5, 420.0
QUICK_GB, QUICK_ROUNDS, QUICK_S = 6.0, 2, 65.0
POOL_BUFFERS = 16  # two for each of the most threads that any of our loaders has
LINK, LOOP, FIO = "link: page-locked host memory to device", "storage: own O_DIRECT loop", "storage: fio"
LOOP_THREADS = (4, 8, 16)
PACKAGES = ("torch", "numpy", "xxhash", "safetensors", "fastsafetensors", "kvikio-cu13", "kvikio-cu12", "nvidia-cufile")
# Seven loads of each round read cold; all at once the slowest of them reaches a fourth of the storage's speed.
_COLD_LOADS = 7 * 1.6
_COLD, _WARM = "cold", "warm"
_SMALL = Shapes(hidden=256, key_value=64, feed_forward=896)


@dataclass(slots=True)
class Run:
    """What is measured, and what came of it.

    Attributes:
        found: values of each case and metric, one for each round.
        notes: what a reader of the figures must know.
    """

    device: torch.device
    pool: BufferPool
    weights: Weights
    loaders: Sequence[Loader]
    whole_machine: bool
    loop_threads: int = LOOP_THREADS[0]
    found: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, object] = field(default_factory=dict)

    def round(self, number: int) -> None:
        """Both ceilings and all loaders once, cold and warm."""
        forgotten_by = self.forget()
        self.found[LINK, "speed", "GB/s"].append(link_gb_per_s(self.pool, self.device, total_bytes=self._link_bytes()))
        self.notes["cold by"] = forgotten_by
        self.found[LOOP, "speed", "GB/s"].append(
            storage_gb_per_s(self.pool, self.weights.paths, threads=self.loop_threads)
        )
        self.forget()
        if (fio := fio_gb_per_s(self.weights.paths)) is not None:
            self.found[FIO, "speed", "GB/s"].append(fio)
        turn = number % len(self.loaders)
        for loader in [*self.loaders[turn:], *self.loaders[:turn]]:
            self.forget()
            self.load(loader, _COLD)
        remember(self.weights.paths)
        self.notes["resident when warm"] = resident(self.weights.paths)
        for loader in [*self.loaders[turn:], *self.loaders[:turn]]:
            self.load(loader, _WARM)

    def load(self, loader: Loader, state: str) -> None:
        """One load, timed, and then compared."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # so that each pays for its memory, and none for another's
        synchronize(self.device)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        tensors = loader.load(self.weights, state == _WARM)
        synchronize(self.device)
        took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        if wrong := self.weights.wrong(tensors):
            raise SystemExit(f"{loader.name}, {state}: {wrong}")
        size_gb, case = self.weights.size_bytes / 1e9, f"{loader.name}, {state}"
        self.found[case, "speed", "GB/s"].append(size_gb / took_s)
        self.found[case, "cpu", "s/GB"].append(took_cpu_s / size_gb)

    def forget(self) -> str:
        """Empty the page cache; note how much of the files it kept all the same."""
        how = forget(self.weights.paths, whole_machine=self.whole_machine)
        self.notes["resident when cold"] = resident(self.weights.paths)
        return how

    def calibrate(self) -> None:
        """How many threads the storage's own loop reads with: the number that is fastest here."""
        speeds = {}
        for threads in LOOP_THREADS:
            self.forget()
            speeds[threads] = storage_gb_per_s(self.pool, self.weights.paths[:1], threads=threads)
        self.loop_threads = max(speeds, key=speeds.__getitem__)
        self.notes["storage loop"] = {f"{threads} threads": round(speed, 2) for threads, speed in speeds.items()}

    def _link_bytes(self) -> int:
        return min(self.weights.size_bytes, 4_000_000_000)


def rows_of(found: Mapping[tuple[str, str, str], Sequence[float]]) -> list[Row]:
    """All medians, and for each load its share of what was possible in the same round."""
    rows = [row(case, metric, unit, values) for (case, metric, unit), values in found.items()]
    links, storages = found[LINK, "speed", "GB/s"], _storage(found)
    for (case, metric, _), values in found.items():
        if metric == "speed" and case.endswith((_COLD, _WARM)):
            limits = links if case.endswith(_WARM) else [min(pair) for pair in zip(links, storages, strict=True)]
            rows.append(row(case, "of the limit", "ratio", [v / m for v, m in zip(values, limits, strict=True)]))
    return rows


def _storage(found: Mapping[tuple[str, str, str], Sequence[float]]) -> list[float]:
    loop, fio = found[LOOP, "speed", "GB/s"], found.get((FIO, "speed", "GB/s"), ())
    return [max(pair) for pair in zip(loop, fio, strict=True)] if len(fio) == len(loop) else list(loop)


def bars_of(rows: Sequence[Row], *, dry: bool) -> list[Bar]:
    """What the issue asks for: the best of our checked loads against the limit, and others; a dry run meets nothing."""

    def best(metric: str, state: str, *beginnings: str) -> Row | None:
        fitting = [one for one in rows if one.metric == metric and one.case.endswith(f", {state}")]
        fitting = [one for one in fitting if one.case.startswith(beginnings) and "not hashed" not in one.case]
        return max(fitting, key=lambda one: one.median, default=None)

    ratio = best("of the limit", _COLD, OURS)
    value = ratio.median if ratio and not dry else None
    bars = [_bar("gpu_load_ratio", f">= {GOAL_RATIO} of min(storage, link), cold, hashed", value, GOAL_RATIO)]
    for state in (_COLD, _WARM):
        ours = best("speed", state, OURS)
        for other in (FAST, PLAIN):
            theirs = best("speed", state, other + ",")
            value = ours.median / theirs.median if ours and theirs and not dry else None
            bars.append(_bar(f"gpu_load_vs_{other}_{state}", "> 1 (ours to theirs)", value, 1.0))
    return bars


def _bar(name: str, goal: str, value: float | None, least: float) -> Bar:
    if value is None:
        return Bar(name, goal, None, False)
    met = value > least if goal.startswith("> ") else value >= least
    return Bar(name, goal, round(value, 4), met)


def measure(arguments: argparse.Namespace, scratch: Path) -> tuple[Run, dict[str, str]]:
    """All rounds that fit into the time."""
    began_s, dry = time.monotonic(), arguments.dry_run_cpu
    queue = queue_for("cpu" if dry else "cuda")
    pool, why_not_pinned = (BufferPool(POOL_BUFFERS), "") if dry else pinned_pool(POOL_BUFFERS)
    verdict = GdsVerdict(False, None, "the device is no GPU") if dry else probe_gds(20.0, directory=scratch)
    print(f"cuFile: {verdict.why}")
    if dry:
        weights = make_weights(scratch, 6_000_000, queue.device, shapes=_SMALL, layers_per_file=2)
    else:
        size_bytes = int(arguments.gb * 1e9) if arguments.gb else _size(scratch, pool, arguments)
        weights = make_weights(scratch, size_bytes, queue.device)
    found, missing = loaders(queue, pool, verdict)
    run = Run(queue.device, pool, weights, found, whole_machine=not dry)
    run.notes |= {"cuFile": verdict.why, "model": f"{weights.size_bytes / 1e9:.2f} GB in {len(weights.files)} files"}
    run.notes |= {"filesystem": filesystem(scratch)} | ({"pinning": why_not_pinned} if why_not_pinned else {})
    run.calibrate()
    slowest_s = 0.0
    for number in range(2 if dry else arguments.rounds):
        begun_s = time.monotonic()
        if number and begun_s - began_s + slowest_s > arguments.budget_s:
            run.notes["rounds"] = f"{number} of {arguments.rounds}: the time was up"
            break
        run.round(number)
        slowest_s = max(slowest_s, time.monotonic() - begun_s)
        print(f"round {number + 1}: {time.monotonic() - begun_s:.0f} s", flush=True)
    run.notes["our modes, by bytes"] = {loader.name: loader.modes for loader in found if loader.modes}
    return run, missing


def _size(scratch: Path, pool: BufferPool, arguments: argparse.Namespace) -> int:
    """As large as the time allows, by the speed of a first file; a fourth of disk, RAM and GPU memory at most."""
    path = scratch / "first"
    torch.randint(0, 256, (512 << 20,), dtype=torch.uint8, device="cuda").cpu().numpy().tofile(path)
    forget([path], whole_machine=True)
    speed = storage_gb_per_s(pool, [path], threads=8)
    path.unlink()
    for_reading_s = 0.6 * arguments.budget_s
    wanted = 1e9 * speed * for_reading_s / (arguments.rounds * _COLD_LOADS)
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = min(shutil.disk_usage(scratch).free, ram_bytes, torch.cuda.mem_get_info()[0]) / 4
    chosen = int(min(max(wanted, 2e9), 16e9, most))
    print(f"storage reads about {speed:.1f} GB/s: the model gets {chosen / 1e9:.1f} GB")
    return chosen


def report(run: Run, missing: Mapping[str, str], *, dry: bool) -> dict[str, object]:
    """The result, in the shape of all of them, with what could not be measured and why."""
    rows = rows_of(run.found)
    found = result(
        NAME + ("_dry_run" if dry else ""), COMMAND + (" --dry-run-cpu" if dry else ""), rows, bars_of(rows, dry=dry)
    )
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return found | {
        "hardware": hardware(run.device),
        "versions": versions,
        "missing": dict(missing),
        "notes": run.notes,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.storage", description=__doc__)
    parser.add_argument("--dry-run-cpu", action="store_true", help="small, on the CPU: shows only that it runs")
    parser.add_argument("--directory", type=Path, default=Path("."), help="on the storage that is meant; needs room")
    parser.add_argument("--out", type=Path, help="folder of the result; benchmarks/results, or out for a dry run")
    parser.add_argument("--gb", type=float, help="size of the model in 10^9 bytes; by default what the time allows")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="a model of 6 GB, two rounds, in 65 s")
    parser.add_argument("--budget-s", type=float, help=f"no round is begun that would end after it; {BUDGET_S:g}")
    given = parser.parse_args(arguments)
    given.gb = given.gb or (QUICK_GB if given.quick else None)
    given.rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    given.budget_s = given.budget_s or (QUICK_S if given.quick else BUDGET_S)
    if not given.dry_run_cpu and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use: run this where there is one, or try --dry-run-cpu")
    with tempfile.TemporaryDirectory(prefix="ebbtide-gpu-storage-", dir=given.directory) as scratch:
        run, missing = measure(given, Path(scratch))
    found = report(run, missing, dry=given.dry_run_cpu)
    for one in rows_of(run.found):
        print(
            f"{one.case:58} {one.metric:12} {one.median:8.3f} {one.unit:5} ({one.min:.3f} .. {one.max:.3f}, n={one.n})"
        )
    for name, why in missing.items():
        print(f"{name:58} {why}")
    for bar in bars_of(rows_of(run.found), dry=given.dry_run_cpu):
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value} (goal {bar.goal})")
    print(write(found, given.out or (Path("out") if given.dry_run_cpu else RESULTS)))


if __name__ == "__main__":
    main()
