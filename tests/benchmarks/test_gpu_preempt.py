"""The benchmark of leaving a GPU runs without one, from a bare checkout, and says in words what it could not do."""

import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import freeze, preempt
from benchmarks.gpu.extent import WrongBytes, ask, round_trips
from benchmarks.gpu.nvml import Gpu, Unreadable
from benchmarks.gpu.preempt import COMMAND, FREE_DRIVER, FREE_OURS, GOALS, LOSS_EQUAL, bars_of, fitting, main
from benchmarks.gpu.preempt_child import EVICTED, RESTORED, SHARE, SPEED, UNDISTURBED
from benchmarks.gpu.told import Child, ChildFailed
from benchmarks.preempt.events import Event, Story
from ebbtide_testing.gpu_driver.fake_operation import FakeOperation

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
        ("1 GB", f"evict: {LOSS_EQUAL}", "ratio"): [1.0],
        **{(case.replace("_", " "), FREE_OURS, "s"): [times[0]] for case, times in seconds.items()},
        **{(case.replace("_", " "), FREE_DRIVER, "s"): times[1:] for case, times in seconds.items()},
    }


def test_the_worst_size_counts_and_what_was_not_measured_meets_nothing() -> None:
    bars = {bar.bar: (bar.value, bar.met) for bar in bars_of(values(_1_GB=[1.0, 9.0], _60_GB=[2.0, 12.0]), dry=False)}
    assert bars == {
        "gpu_evict_vs_link": (0.85, True),
        "gpu_restore_vs_link": (0.6, False),
        "gpu_free_vs_driver": (6.0, True),
        "gpu_loss_bit_equal": (1.0, True),
    }
    assert [bar.value for bar in bars_of({}, dry=False)] == [None] * len(GOALS)
    assert not any(bar.met for bar in bars_of(values(_1_GB=[1.0, 9.0]), dry=True))


def test_one_loss_that_differs_misses_the_bar_whatever_the_others_are() -> None:
    found = values(_1_GB=[1.0, 9.0]) | {("60 GB", f"whole: {LOSS_EQUAL}", "ratio"): [1.0, 0.0]}
    assert {bar.bar: (bar.value, bar.met) for bar in bars_of(found, dry=False)}["gpu_loss_bit_equal"] == (0.0, False)


class Played:
    """In a child's place: trains well undisturbed, and comes back with ``after``."""

    after = ""

    def __init__(self, role: str, size_bytes: int, device: str) -> None:
        self.pid = os.getpid()
        self._loss = "0x1p0" if role == UNDISTURBED else self.after

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def until(self, event: Event | None) -> Story:
        return Story({Event.RUNNING: 1.0}, self._loss)

    def told(self, word: str, then: Event) -> Story:
        return self.until(then)


@pytest.mark.parametrize(("after", "wrong"), [("0x1p0", []), ("0x1.8p0", ["1 GB, evict"]), ("", ["1 GB, evict"])])
def test_a_loss_that_differs_is_told_as_wrong(after: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Played, "after", after)
    monkeypatch.setattr(preempt, "Child", Played)
    found = preempt.Found()
    preempt.measure_size("1 GB", GB, "cuda", preempt.Watch(None, None), found)
    assert list(found.wrong) == wrong
    assert found.values["1 GB", f"evict: {LOSS_EQUAL}", "ratio"] == [float(not wrong)]


@pytest.mark.parametrize("wrong", [{}, {"1 GB, evict": "the loss after it came back is another"}])
def test_a_run_in_which_anything_was_wrong_has_failed(
    wrong: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preempt, "measure", lambda _: (preempt.Found(wrong=wrong), "a machine"))
    assert main(["--dry-run-cpu", "--out", str(tmp_path)]) == bool(wrong)
    assert json.loads((tmp_path / "gpu_preempt_dry_run.json").read_text())["wrong"] == wrong
    assert bool(capsys.readouterr().err.count("WRONG: 1 GB, evict: the loss")) == bool(wrong)


class CuFile:
    """In cuFile's place, for memory of ours. ``moves``: bytes of a call; ``writes``: what becomes of a piece."""

    FileHandleType = SimpleNamespace(OPAQUE_FD=1)

    def __init__(self, moves: int = 1 << 20, writes: Callable[[bytes], bytes] = bytes, reads: bool = True) -> None:
        self._moves, self._writes, self._reads = moves, writes, reads
        self.registered: list[int] = []
        self.handles: list[int] = []

    def Descr(self) -> SimpleNamespace:
        self._descriptor = SimpleNamespace(handle=SimpleNamespace(fd=-1), ptr=7)
        return self._descriptor

    def handle_register(self, pointer: int) -> int:
        assert pointer == 7 and self._descriptor.type == 1
        self.handles.append(fd := int(self._descriptor.handle.fd))
        return fd

    def handle_deregister(self, handle: int) -> None:
        self.handles.remove(handle)

    def buf_register(self, pointer: int, size_bytes: int, flags: int) -> None:
        self.registered.append(pointer)

    def buf_deregister(self, pointer: int) -> None:
        self.registered.remove(pointer)

    def write(self, handle: int, base: int, size: int, file_at: int, at: int) -> int:
        piece = self._writes(ctypes.string_at(base + at, min(size, self._moves)))
        with open(f"/proc/self/fd/{handle}", "r+b") as file:  # as the handle is, it wants aligned memory
            file.seek(file_at)
            return file.write(piece)

    def read(self, handle: int, base: int, size: int, file_at: int, at: int) -> int:
        with open(f"/proc/self/fd/{handle}", "rb") as file:
            file.seek(file_at)
            piece = file.read(min(size, self._moves))
        if self._reads:
            ctypes.memmove(base + at, piece, len(piece))
        return len(piece)


@pytest.fixture
def operation(tmp_path: Path) -> FakeOperation:
    memory = tmp_path / "memory"
    memory.write_bytes(random.Random(1).randbytes(3_000_001))
    return FakeOperation(memory, fill=True, complete=lambda: None)


def test_what_cufile_moved_there_and_back_is_compared(operation: FakeOperation, tmp_path: Path) -> None:
    cufile = CuFile()
    said = round_trips(cufile, operation, tmp_path)
    assert said == "3000001 bytes were registered, written, read back and were the same"
    assert not cufile.registered and not cufile.handles
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]


@pytest.mark.parametrize(
    ("cufile", "where"),
    [
        (CuFile(writes=lambda piece: piece[:-1] + b"?"), "in the file"),
        (CuFile(reads=False), "on the GPU"),
    ],
)
def test_other_bytes_than_were_there_are_wrong_and_not_just_a_refusal(
    operation: FakeOperation, tmp_path: Path, cufile: CuFile, where: str
) -> None:
    with pytest.raises(WrongBytes, match=where):
        round_trips(cufile, operation, tmp_path)
    assert not cufile.registered and not cufile.handles


def test_a_transfer_that_stops_on_the_way_is_told(operation: FakeOperation, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="wrote 0 of 3000001 bytes and then gave 0"):
        round_trips(CuFile(moves=0), operation, tmp_path)


def test_where_there_is_no_driver_the_answer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", "platform")
    assert ask(os.getpid(), tmp_path, direct=True).startswith("does not work: CannotFreeze")


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
    assert found["wrong"] == {}
    assert {one["metric"]: one["median"] for one in found["rows"]}[f"evict: {LOSS_EQUAL}"] == 1.0
    assert {f"{EVICTED}, {SPEED}", f"{RESTORED}, {SHARE}"} <= {one["metric"] for one in found["rows"]}
    assert "CUDA checkpoint" in found["missing"]
