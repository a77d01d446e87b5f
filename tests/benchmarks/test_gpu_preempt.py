"""The benchmark of leaving a GPU runs without one, from a bare checkout, and says in words what it could not do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import freeze
from benchmarks.gpu.nvml import Gpu, Unreadable
from benchmarks.gpu.preempt import COMMAND, FREE_DRIVER, FREE_OURS, GOALS, bars_of, fitting
from benchmarks.gpu.preempt_child import EVICTED, RESTORED, SHARE, SPEED
from benchmarks.gpu.told import Child, ChildFailed
from benchmarks.preempt.events import Event

ROOT = Path(__file__).parents[2]
GB = 10**9
# What a machine with PyTorch alone does not have.
ABSENT = ("ray", "vllm", "pydantic", "aiohttp", "fastapi", "kvikio", "cuda", "pynvml")


def values(**seconds: list[float]) -> dict[tuple[str, str, str], list[float]]:
    """Of two sizes: shares of the link, and seconds to free."""
    return {
        ("1 GB", f"{EVICTED}, {SHARE}", "ratio"): [0.9, 0.95, 0.7],
        ("60 GB", f"{EVICTED}, {SHARE}", "ratio"): [0.85],
        ("60 GB", f"{RESTORED}, {SHARE}", "ratio"): [0.6],
        **{(case.replace("_", " "), FREE_OURS, "s"): [times[0]] for case, times in seconds.items()},
        **{(case.replace("_", " "), FREE_DRIVER, "s"): times[1:] for case, times in seconds.items()},
    }


def test_the_worst_size_counts_and_what_was_not_measured_meets_nothing() -> None:
    bars = {bar.bar: (bar.value, bar.met) for bar in bars_of(values(_1_GB=[1.0, 9.0], _60_GB=[2.0, 12.0]), dry=False)}
    assert bars == {
        "gpu_evict_vs_link": (0.85, True),
        "gpu_restore_vs_link": (0.6, False),
        "gpu_free_vs_driver": (6.0, True),
    }
    assert [bar.value for bar in bars_of({}, dry=False)] == [None] * len(GOALS)
    assert not any(bar.met for bar in bars_of(values(_1_GB=[1.0, 9.0]), dry=True))


def test_a_size_that_only_one_side_has_is_not_compared() -> None:
    bars = {bar.bar: bar.value for bar in bars_of(values(_1_GB=[1.0, 9.0], _60_GB=[2.0]), dry=False)}
    assert bars["gpu_free_vs_driver"] == 9.0


def test_sizes_that_do_not_fit_are_named_with_what_there_is() -> None:
    found, missing = fitting([1, 10, 60], 80 * GB, 64 * GB)
    assert (found, missing) == ([GB, 10 * GB], {"60 GB": "64 GB of host memory are free"})
    found, missing = fitting([1, 10, 60], 24 * GB, 500 * GB)
    assert (found, missing) == ([GB, 10 * GB], {"60 GB": "the GPU has 24 GB"})


def test_without_driver_and_nvml_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(freeze.CannotFreeze):
        freeze.find()
    with pytest.raises(Unreadable, match="NVML"):
        Gpu("GPU-0")
    monkeypatch.setattr(freeze.Freezer, "_do", lambda self, calls: calls())
    said = freeze.privileges(os.getpid())
    assert "does not work" in said["as we are"] and said["user"] == str(os.geteuid())


def test_a_child_that_ends_before_its_word_is_named() -> None:
    with pytest.raises(ChildFailed, match="no such role"), Child("no such role", 1, "cpu") as child:
        child.until(Event.READY)


@pytest.mark.hunt
def test_a_dry_run_needs_torch_alone_and_claims_nothing(tmp_path: Path) -> None:
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.preempt", "--dry-run-cpu", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{hide}{os.pathsep}platform"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "gpu_preempt_dry_run.json").read_text())
    assert found["command"] == f"{COMMAND} --dry-run-cpu"
    assert {bar["bar"]: bar["value"] for bar in found["bars"]} == dict.fromkeys(GOALS)
    assert "as undisturbed" in [note for name, note in found["notes"].items() if "loss after" in name]
    assert {f"{EVICTED}, {SPEED}", f"{RESTORED}, {SHARE}"} <= {one["metric"] for one in found["rows"]}
    assert "CUDA checkpoint" in found["missing"]
