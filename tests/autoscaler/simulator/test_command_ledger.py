"""``ebbtide simulate --ledger`` as people run it, and misuse it."""

import json
from pathlib import Path

import pytest

from tests.autoscaler.simulator.ledgers import pool_file, tide, written
from tests.builders.simulate import refusal, run

USES = ("training", "lost", "loading", "saving", "ready", "starting", "draining", "free", "down")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared directory of a pool that has lived for six minutes."""
    folder, life = tmp_path_factory.mktemp("pool"), tide()
    written(folder / "ledger", life.events, [pool_file(folder), *life.records()])
    return folder


def a_file(folder: Path, text: str = "{}\n") -> str:
    (folder / "if.yaml").write_text(text)
    return str(folder / "if.yaml")


def test_what_happened_stands_beside_what_the_simulator_says(shared: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    found = run(
        *(a_file(tmp_path), "--ledger", str(shared), "--policies", "ebbtide,static-p100"),
        *("--json", str(out), "--report", str(page), "--processes", "1"),
    )
    assert found.exit_code == 0, found.output
    assert "3 GPUs, 0.1 hours, 1 job, 1 seed" in found.output
    assert "What really happened, and what the simulator says, in GPU-s" in found.output and "as it was" in found.output
    assert "1 of 1 jobs did not finish" in found.stderr
    figures = json.loads(out.read_text())
    recorded = figures["recorded"]
    assert set(recorded["gpu_s"]) == set(USES) == set(recorded["course"])
    assert sum(recorded["gpu_s"].values()) == pytest.approx(3 * 3600 * recorded["hours"])
    for one in figures["policies"].values():
        assert sum(figure["mean"] for figure in one["gpu_s"].values()) == pytest.approx(3 * 3600 * recorded["hours"])
    assert recorded["preemptions"] == 1 and recorded["measured_s"]["aside_s"]["n"] == 1
    assert figures["inputs"]["serving"] == [f"{shared.name}:1"]
    text = page.read_text()
    assert text.count("<svg") == 5 and "<h3>as it was</h3>" in text


def test_the_file_says_what_is_other_than_it_was(shared: Path, tmp_path: Path) -> None:
    text = "pool: {nodes: 2}\ntimes: {start_s: 1}\npolicy: {grow_after_s: 1}\n"
    found = run(a_file(tmp_path, text), "--ledger", f"{shared}:2:0.001", "--policies", "ebbtide", "--json", "-")
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert figures["inputs"]["slots"] == 6 and figures["inputs"]["serving"] == [f"{shared.name}:2:0.001"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ledger", "nowhere"), "nowhere: no such folder"),
        (("--ledger", "FILE"), "holds no ledger"),
        (("--ledger", "SHARED", "--serving", "x.parquet"), "--ledger has its own traffic and jobs"),
        (("--ledger", "SHARED", "--jobs", "x.parquet"), "--ledger has its own traffic and jobs"),
        (("--ledger", "SHARED:0"), "demand cannot be multiplied by 0"),
        (("--ledger", "SHARED:nan"), "demand cannot be multiplied by nan"),
        (("--ledger", "SHARED:1:-1"), "it cannot begin on day -1"),
        (("--ledger", "SHARED:1:9"), "and cannot begin on day 9"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    shared: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    file = a_file(tmp_path)
    said = [one.replace("SHARED", str(shared)).replace("FILE", file) for one in arguments]
    assert message in refusal(file, *said)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("pool: {nodes: 0}\n", "1:15", "greater than or equal to 1"),
        ("endpoints: [{name: chat, engine: llama-8b-h100}]\n", "1:26", "engine"),
        ("endpoints: [{name: chat}, {name: chat}]\n", "1:1", "two endpoints have one name"),
        ("times: {step_s: 3}\n", "1:9", "step_s"),
        ("run: {warm_up_s: 60}\n", "1:18", "a replay has no warm-up"),
    ],
)
def test_a_wrong_file_is_told_of_with_line_and_column(
    shared: Path, tmp_path: Path, text: str, place: str, message: str
) -> None:
    told = refusal(a_file(tmp_path, text), "--ledger", str(shared))
    assert f"if.yaml:{place}" in told and message in told
