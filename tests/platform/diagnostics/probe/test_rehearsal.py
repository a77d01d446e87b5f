"""The dress rehearsal: real processes that park and come back, and everything that may fail beside the workload."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe import rehearsal, rehearsal_acts
from ebbtide.diagnostics.probe.rehearsal import Act, RehearsalFailed, evict_and_back, size_to_move, spill_and_back
from ebbtide.diagnostics.probe.rehearsal_child import digest, rehearse, tracked
from ebbtide.diagnostics.probe.rehearsal_criu import image_and_back
from ebbtide.helper.criu.criu_program import Criu, NoCriu
from ebbtide.snapshot.rates_file import read_rates
from ebbtide.snapshot.tiers import Lane
from tests.criu import criu_or_skip

MIB, GIB = 1 << 20, 1 << 30


def test_it_takes_a_quarter_of_what_is_free_and_at_most_a_gib() -> None:
    assert size_to_move(None, 100 * GIB) == GIB
    assert size_to_move(None, GIB) == GIB // 4
    assert size_to_move(100 * MIB, GIB) == 100 * MIB


@pytest.mark.parametrize(
    ("asked", "free", "why"),
    [
        (None, None, "free memory cannot be read"),
        (600 * MIB, GIB, "holds them twice, and 1.07 GB are free: ask for less"),
        (1, GIB, "would show nothing"),
        (None, 2 * MIB, "would show nothing"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_taken(asked: int | None, free: int | None, why: str) -> None:
    with pytest.raises(RehearsalFailed, match=why):
        size_to_move(asked, free)


def test_the_bytes_of_the_child_are_as_many_as_asked_and_none_is_left_out_of_the_hash() -> None:
    named = tracked(3 * MIB)
    assert sum(tensor.nbytes for tensor in named.values()) == 3 * MIB
    before = digest(named)
    last = list(named.values())[-1]
    last.view(-1)[-1] += 1
    assert digest(named) != before


def test_a_rehearsal_gives_the_memory_back_meanwhile() -> None:
    found = rehearse(48 * MIB)
    assert found["same"] is True
    assert int(str(found["freed_bytes"])) >= 0.9 * 48 * MIB


def test_a_child_of_its_own_parks_and_comes_back() -> None:
    act = evict_and_back(16 * MIB)
    assert not act.failed and "bit for bit" in act.words
    assert set(act.rates) == {Lane.MEMCPY_OUT, Lane.MEMCPY_BACK}
    assert all(rate.measured and "rehearsed with 16.8 MB" in rate.origin for rate in act.rates.values())


def said(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> None:
    def run(command: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)


def test_bytes_that_differ_are_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, json.dumps({"bytes": 1, "out_s": 1.0, "back_s": 1.0, "freed_bytes": 1, "same": False}))
    act = evict_and_back(MIB)
    assert act.failed and not act.rates and "DIFFERENT" in act.words


@pytest.mark.parametrize("stdout", ["", "noise", "[]", "{}", '{"bytes": null}'])
def test_a_child_that_ends_badly_says_its_last_line(monkeypatch: pytest.MonkeyPatch, stdout: str) -> None:
    said(monkeypatch, stdout, "Traceback\nMemoryError: no room\n")
    with pytest.raises(RehearsalFailed, match="ended badly: MemoryError: no room"):
        evict_and_back(MIB)


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(rehearsal, "CHILD_S", 0.3)
    monkeypatch.setattr(rehearsal, "_CHILD", "slow")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RehearsalFailed, match=r"did not come back within 0.3 s"):
        evict_and_back(MIB)


def test_a_spill_is_written_read_and_removed(tmp_path: Path) -> None:
    act = spill_and_back(tmp_path, 16 * MIB)
    assert not act.failed and set(act.rates) == {Lane.STORAGE_OUT, Lane.STORAGE_BACK}
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_takes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(RehearsalFailed, match="does not take a file"):
        spill_and_back(tmp_path / "none", 16 * MIB)


def test_one_act_that_fails_leaves_the_others_their_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_size: int) -> Act:
        raise RehearsalFailed("the child died")

    monkeypatch.setattr(rehearsal_acts, "evict_and_back", fails)
    monkeypatch.setattr(rehearsal_acts, "find", lambda *_: NoCriu("none here"))
    done = rehearsal_acts.rehearse(16 * MIB, str(tmp_path), tmp_path / "run", Machine())
    assert [(act.name, act.failed) for act in done] == [("evict", True), ("spill", False), ("criu", False)]
    assert done[2].words == "not rehearsed: none here"
    assert set(read_rates(tmp_path / "run").measured) == {Lane.STORAGE_OUT, Lane.STORAGE_BACK}


def test_nothing_measured_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_acts, "evict_and_back", lambda _size: Act("evict", "bytes differ", failed=True))
    monkeypatch.setattr(rehearsal_acts, "find", lambda *_: NoCriu("none here"))
    done = rehearsal_acts.rehearse(16 * MIB, "", tmp_path / "run", Machine())
    assert "no shared directory" in done[1].words and not (tmp_path / "run").exists()


def living(folder: Path) -> list[str]:
    """Processes whose working directory lies in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            found += [entry.name] if cwd.is_relative_to(folder) else []
    return found


def test_a_process_becomes_an_image_and_comes_back(tmp_path: Path) -> None:
    act = image_and_back(criu_or_skip(), tmp_path, 4 * MIB)
    assert not act.failed and "bit for bit" in act.words and set(act.rates) == {Lane.CRIU_OUT, Lane.CRIU_BACK}
    assert list(tmp_path.iterdir()) == [] and living(tmp_path) == []


@pytest.mark.parametrize("refuses", ["dump", "restore"])
def test_a_criu_that_refuses_leaves_nothing(tmp_path: Path, refuses: str) -> None:
    script = tmp_path / "criu"
    script.write_text(
        f"#!{sys.executable}\nimport os, signal, sys\nif sys.argv[1] == {refuses!r}:\n    sys.exit('no')\n"
        "os.kill(int(sys.argv[sys.argv.index('-t') + 1]), signal.SIGKILL)\n"
    )
    script.chmod(0o755)
    (place := tmp_path / "place").mkdir()
    with pytest.raises(RehearsalFailed, match=f"CRIU's {refuses} failed: no"):
        image_and_back(Criu(script, "4.2"), place, MIB)
    assert list(place.iterdir()) == [] and living(place) == []
