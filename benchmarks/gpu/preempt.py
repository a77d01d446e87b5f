"""How soon a GPU is free of a training state and has it back, against the link, and against the CUDA driver alone.

For each size, in fresh processes that this one watches through NVML:

- *evict*: the tracked state to page-locked host memory and back, several times, each between two measured copies over
  the link; then once in earnest: evicted, what remains of the process checkpointed by the driver, the GPU's memory back
  at the level it had before; restored, and the loss of the next step as undisturbed;
- *driver alone*: the same state, which stays where it is, and the driver takes all of it.

Needs PyTorch alone. Our driver port, NVML and cuFile are used where they are; what is missing is told in words.

usage: PYTHONPATH=platform python -m benchmarks.gpu.preempt [--quick] [--gb 1 10 60] [--out FOLDER] [--budget-s 450]
       PYTHONPATH=platform python -m benchmarks.gpu.preempt --dry-run-cpu     (does the script run? Measures nothing.)
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import torch

from benchmarks.gpu import extent, freeze
from benchmarks.gpu.nvml import Gpu, Unreadable
from benchmarks.gpu.preempt_child import (
    ABOUT,
    BACK,
    COME,
    EVICT,
    EVICTED,
    LEAVE,
    OUT,
    RESTORED,
    SHARE,
    SPEED,
    UNDISTURBED,
    WHOLE,
)
from benchmarks.gpu.told import Child, ChildFailed
from benchmarks.preempt.events import Event
from benchmarks.rows import Bar, Row, result, row, write
from ebbtide.storage.device.gds_probe import probe_gds
from evidence.provenance import RESULTS

NAME = "gpu_preempt"
COMMAND = "PYTHONPATH=platform python -m benchmarks.gpu.preempt"
SIZES_GB, BUDGET_S = (1.0, 10.0, 60.0), 450.0
QUICK_GB, QUICK_S = (1.0, 10.0, 30.0), 120.0
DRY_BYTES = 20_000_000
IDLE_SLACK_BYTES = 32 << 20  # what NVML's figure moves by without anybody doing anything
IDLE_WAIT_S = 30.0
PACKAGES = ("torch", "cuda-core", "cuda-bindings", "kvikio-cu13", "nvidia-ml-py")
FREE_OURS, FREE_DRIVER = "decision to memory back at idle", "decision to memory back at idle, driver alone"
UNITS = {OUT: "GB/s", BACK: "GB/s", f"{EVICTED}, {SPEED}": "GB/s", f"{RESTORED}, {SPEED}": "GB/s"}
UNITS |= {f"{EVICTED}, {SHARE}": "ratio", f"{RESTORED}, {SHARE}": "ratio", "still reserved by torch": "MB"}
GOALS = {
    "gpu_evict_vs_link": (">= 0.8 of page-locked copies over the link", 0.8),
    "gpu_restore_vs_link": (">= 0.8 of page-locked copies over the link", 0.8),
    "gpu_free_vs_driver": (">= 5 x sooner than the driver alone", 5.0),
    "gpu_loss_bit_equal": ("1: after each resume the next loss is that of an undisturbed run, bit for bit", 1.0),
}
LOSS_EQUAL = "next loss as undisturbed"


@dataclass(slots=True)
class Found:
    """What came of it: values by case and metric, and what a reader must know.

    Attributes:
        missing: what this machine does not have, or what did not come to an end.
        wrong: state that was not the same afterwards. Then nothing else counts.
    """

    values: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, object] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Watch:
    """The GPU as it is seen from outside. ``idle_bytes``: taken when none of our children is there."""

    gpu: Gpu | None
    freezer: freeze.Freezer | None
    idle_bytes: int = 0

    @classmethod
    def begin(cls, uuid: str, found: Found) -> "Watch":
        """With what this machine has; says what it has not. Our own driver is started before idle is measured."""
        freezer, gpu = None, None
        try:
            freezer = freeze.find()
            found.notes["driver"] = freezer.says
        except freeze.CannotFreeze as error:
            found.missing["CUDA checkpoint"] = str(error)
        try:
            gpu = Gpu(uuid) if uuid else None
        except Unreadable as error:
            found.missing["NVML"] = str(error)
        watch = cls(gpu, freezer)
        watch.idle_bytes = 0 if gpu is None else gpu.used_bytes()
        return watch


def measure_size(case: str, size_bytes: int, device: str, watch: Watch, found: Found) -> None:
    """All figures of one size."""
    with Child(UNDISTURBED, size_bytes, device) as child:
        reference = child.until(Event.LOSS).loss
    for role in (EVICT, WHOLE) if watch.freezer is not None else (EVICT,):
        try:
            with Child(role, size_bytes, device) as child:
                _one(role, case, child, watch, found, reference)
        except (ChildFailed, freeze.CannotFreeze) as error:
            found.missing[f"{case}, {role}"] = str(error)


def _one(role: str, case: str, child: Child, watch: Watch, found: Found, reference: str) -> None:
    story = child.until(Event.READY)
    if "privileges" not in found.notes and watch.freezer is not None:
        found.notes["privileges"] = freeze.privileges(child.pid)
    decided_s = time.monotonic()
    story = child.told(LEAVE, Event.STAGED)
    for name, values in story.figures.items():
        found.values[case, name, UNITS.get(name, "s")] += values
    found.notes.update({f"{case}: {number}": text for number, text in enumerate(story.notes)})
    left = watch.gpu.used_bytes() - watch.idle_bytes if watch.gpu is not None else None
    if role == EVICT:
        found.values[case, "decision to evicted", "s"].append(time.monotonic() - decided_s)
        if left is not None:
            found.values[case, "left on the GPU after evict", "MB"].append(left / 1e6)
    if watch.freezer is not None:
        _freeze_and_thaw(role, case, child, watch, found, decided_s)
    asked_s = time.monotonic()
    story = child.told(COME, Event.LOSS)
    found.values[case, f"{role}: asked to running", "s"].append(story.at_s[Event.RUNNING] - asked_s)
    equal = story.loss == reference
    found.values[case, f"{role}: {LOSS_EQUAL}", "ratio"].append(float(equal))
    if not equal:
        found.wrong[f"{case}, {role}"] = f"the loss after it came back is {story.loss}, undisturbed it is {reference}"


def _freeze_and_thaw(role: str, case: str, child: Child, watch: Watch, found: Found, decided_s: float) -> None:
    assert watch.freezer is not None
    name = FREE_OURS if role == EVICT else FREE_DRIVER
    watch.freezer.freeze(child.pid)
    frozen_s = time.monotonic()
    found.values[case, f"{role}: decision to frozen", "s"].append(frozen_s - decided_s)
    if watch.gpu is not None:
        free_s = watch.gpu.falls_to(watch.idle_bytes + IDLE_SLACK_BYTES, within_s=IDLE_WAIT_S)
        if free_s is None:
            found.missing[f"{case}, {name}"] = f"{watch.gpu.used_bytes() - watch.idle_bytes} bytes stay taken"
        else:
            found.values[case, name, "s"].append(free_s - decided_s)
    thaw_s = time.monotonic()
    watch.freezer.thaw(child.pid)
    found.values[case, f"{role}: thawed by the driver", "s"].append(time.monotonic() - thaw_s)


def bars_of(values: Mapping[tuple[str, str, str], Sequence[float]], *, dry: bool) -> list[Bar]:
    """The worst of all sizes counts; a dry run meets nothing."""

    def medians(metric: str) -> dict[str, float]:
        return {case: median(v) for (case, name, _), v in values.items() if name == metric and v}

    ours, theirs = medians(FREE_OURS), medians(FREE_DRIVER)
    equal = [one for (_, name, _), found in values.items() if name.endswith(LOSS_EQUAL) for one in found]
    worst = {
        "gpu_evict_vs_link": min(medians(f"{EVICTED}, {SHARE}").values(), default=None),
        "gpu_restore_vs_link": min(medians(f"{RESTORED}, {SHARE}").values(), default=None),
        "gpu_free_vs_driver": min((theirs[case] / ours[case] for case in ours if case in theirs), default=None),
        "gpu_loss_bit_equal": min(equal, default=None),
    }
    bars = []
    for name, (goal, least) in GOALS.items():
        value = None if dry or worst[name] is None else round(float(worst[name] or 0.0), 3)
        bars.append(Bar(name, goal, value, value is not None and value >= least))
    return bars


def fitting(sizes_gb: Sequence[float], gpu_bytes: float, ram_bytes: float) -> tuple[list[int], dict[str, str]]:
    """Sizes in bytes that fit the GPU and the host, and why others do not."""
    found, missing = [], {}
    for size_gb in sizes_gb:
        size = int(size_gb * 1e9)
        if size * 1.05 + (3 << 30) > gpu_bytes:  # a context, workspaces, the gradient of the largest parameter
            missing[f"{size_gb:g} GB"] = f"the GPU has {gpu_bytes / 1e9:.0f} GB"
        elif size * 1.1 + (8 << 30) > ram_bytes:  # the pool, or the driver's copy; the processes themselves
            missing[f"{size_gb:g} GB"] = f"{ram_bytes / 1e9:.0f} GB of host memory are free"
        else:
            found.append(size)
    return found, missing


def measure(arguments: argparse.Namespace) -> tuple[Found, str]:
    """All sizes that fit into memory and time, small ones first; and the machine in words."""
    began_s, dry, found = time.monotonic(), arguments.dry_run_cpu, Found()
    device = "cpu" if dry else "cuda"
    with Child(ABOUT, 0, device) as child:
        story = child.until(None)
    words, uuid, total = story.notes[0], "".join(story.notes[1:2]), story.figures.get("memory of the GPU", [0.0])[0]
    watch = Watch.begin(uuid, found)
    found.notes["taken when idle, MB"] = watch.idle_bytes / 1e6
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    sizes, too_large = ([DRY_BYTES], {}) if dry else fitting(arguments.gb, total, ram_bytes)
    found.missing |= too_large
    for size_bytes in sizes:
        case, begun_s = f"{size_bytes / 1e9:g} GB", time.monotonic()
        # A size takes about as long as its bytes, by what the one before took; ten times as much is assumed.
        if size_bytes != sizes[0] and begun_s - began_s > arguments.budget_s / 3:
            found.missing[case] = "the time was up"
            continue
        measure_size(case, size_bytes, device, watch, found)
        print(f"{case}: {time.monotonic() - begun_s:.0f} s", flush=True)
    _ask_cufile(watch, found, arguments)
    return found, words


def _ask_cufile(watch: Watch, found: Found, arguments: argparse.Namespace) -> None:
    """Whether it moves bytes here at all, and those that the driver maps for custom storage: to a file and back."""
    if arguments.dry_run_cpu:
        return
    with tempfile.TemporaryDirectory(prefix="ebbtide-gpu-preempt-", dir=arguments.directory) as scratch:
        found.notes["cuFile"] = probe_gds(20.0, directory=Path(scratch)).why
        if watch.freezer is None or not watch.freezer.custom_storage:
            found.missing["cuFile on custom storage"] = "this driver has none"
            return
        for direct in (True, False):
            what = f"cuFile on custom storage, {'directly' if direct else 'through the CPU, if need be'}"
            with Child(WHOLE, DRY_BYTES, "cuda") as child:
                child.until(Event.READY)
                found.notes[what] = said = extent.ask(child.pid, Path(scratch), direct=direct)
                child.kill()
            if extent.WrongBytes.__name__ in said:
                found.wrong[what] = said


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the result; gives the exit code: 1 if any state was not the same afterwards."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.preempt", description=__doc__)
    parser.add_argument("--dry-run-cpu", action="store_true", help="small, on the CPU: shows only that it runs")
    parser.add_argument("--quick", action="store_true", help="1, 10 and 30 GB, in 120 s")
    parser.add_argument("--gb", type=float, nargs="+", help=f"sizes of the state in 10^9 bytes; {SIZES_GB}")
    parser.add_argument("--directory", type=Path, default=Path("."), help="where cuFile is tried")
    parser.add_argument("--out", type=Path, help="folder of the result; benchmarks/results, or out for a dry run")
    parser.add_argument("--budget-s", type=float, help=f"no size is begun after a third of it; {BUDGET_S:g}")
    given = parser.parse_args(argv)
    given.gb = given.gb or (QUICK_GB if given.quick else SIZES_GB)
    given.budget_s = given.budget_s or (QUICK_S if given.quick else BUDGET_S)
    if not given.dry_run_cpu and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use: run this where there is one, or try --dry-run-cpu")
    found, words = measure(given)
    dry = given.dry_run_cpu
    rows: list[Row] = [row(case, metric, unit, values) for (case, metric, unit), values in found.values.items()]
    document = result(
        NAME + ("_dry_run" if dry else ""),
        COMMAND + (" --dry-run-cpu" if dry else ""),
        rows,
        bars_of(found.values, dry=dry),
    )
    document |= {"hardware": words, "versions": _versions(), "wrong": found.wrong}
    document |= {"missing": found.missing, "notes": found.notes}
    for one in rows:
        print(f"{one.case:8} {one.metric:48} {one.median:10.3f} {one.unit:5} ({one.min:.3f} .. {one.max:.3f})")
    for name, why in (found.missing | {key: str(note) for key, note in found.notes.items()}).items():
        print(f"{name}: {why}")
    for bar in bars_of(found.values, dry=dry):
        print(f"{'met   ' if bar.met else 'MISSED'} {bar.bar}: {bar.value} (goal {bar.goal})")
    print(write(document, given.out or (Path("out") if dry else RESULTS)))
    for name, why in found.wrong.items():
        print(f"WRONG: {name}: {why}", file=sys.stderr)
    return 1 if found.wrong else 0


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
