"""``ebbtide simulate`` as people run it, and misuse it."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide_simulator import command as command_simulate
from ebbtide_simulator import play
from ebbtide_simulator.command import simulate
from ebbtide_simulator.model.engine import ENGINES
from ebbtide_simulator.outputs import STDOUT, check_outputs
from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.report.page import POINTS, drawn_course
from ebbtide_simulator.report.report import Report
from ebbtide_simulator.run.run import COURSE_S
from ebbtide_simulator.scenes.given import load_inputs
from ebbtide_simulator.scenes.scene import scene
from ebbtide_simulator.traffic.trace_files import BadTrace
from tests.builders.simulate import (
    CONFIG,
    MISUSED,
    Columns,
    files,  # noqa: F401 - fixtures
    refusal,
    run,
    written,
)

ISSUE = (
    "slo_attainment",
    "slo_worst_5min",
    "goodput_gpu_s",
    "goodput_vs_static",
    "waste_share",
    "preemptions_per_job_max",
    "double_allocated_gpu_s",
    "queue_s",
    "jct_s",
)
"""What scripts read; with an oracle also its share of that."""
ENGINE = ENGINES["llama-8b-h100"]


def test_it_compares_and_writes_figures_and_a_page(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, serving, jobs = files
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    names = "ebbtide,static-p100"
    found = run(
        *(config, "--serving", f"{serving}:1.2", "--jobs", jobs, "--policies", names, "--seeds", "2"),
        *("--json", str(out), "--report", str(page), "--processes", "2"),
    )
    assert found.exit_code == 0, found.output
    assert "4 GPUs, 1.5 hours, 3 jobs, 2 seeds" in found.output
    figures = json.loads(out.read_text())
    assert list(figures["policies"]) == ["ebbtide", "static-p100"]
    ours = figures["policies"]["ebbtide"]
    assert 0.0 <= ours["slo_attainment"]["mean"] <= 1.0 and ours["goodput_vs_bound"]["mean"] <= 1.0
    assert ours["double_allocated_gpu_s"] == {"mean": 0.0, "ci95": 0.0}
    assert figures["policies"]["static-p100"]["goodput_vs_static"]["mean"] == 1.0
    assert {"slo_attainment_4", "waste_share_4", "goodput_vs_static_4"} <= figures["bars"].keys()
    assert figures["impossible"] == []
    assert set(ISSUE) <= ours.keys() and {"seeds", "inputs", "bars"} <= figures.keys()
    assert set(ours["queue_s"]) == set(ours["jct_s"]) == {"mean", "p50", "p95", "p99"}
    for name in ISSUE[:7]:
        assert set(ours[name]) == {"mean", "ci95"} or ours[name] is None, name
    assert "frontier" not in figures
    assert page.read_text().count("<svg") == 4


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_what_cannot_be_written_in_the_end_costs_nothing_else(
    files: tuple[str, str, str], tmp_path: Path, option: str
) -> None:
    config, serving, jobs = files
    other = tmp_path / "other"
    found = run(
        *(config, "--serving", serving, "--jobs", jobs, "--policies", "static-p100", "--processes", "1"),
        *(option, "/dev/full", "--report" if option == "--json" else "--json", str(other)),
    )
    assert found.exit_code == 1 and isinstance(found.exception, SystemExit), found.exception
    assert "static-p100" in found.output, "the table is there"
    assert other.read_text().rstrip().endswith(("</html>", "}"))
    [told] = [line for line in found.output.splitlines() if line.startswith("Error: ")]
    assert f"{option} /dev/full is not whole: No space left on device" in told and "--keep" in told


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_where_nothing_can_be_created_nothing_is_played(files: tuple[str, str, str], option: str) -> None:
    assert "/proc/out cannot be written: " in refusal(files[0], "--serving", files[1], option, "/proc/out")


def test_a_file_that_is_there_stays_until_the_end(files: tuple[str, str, str], tmp_path: Path) -> None:
    there, new = tmp_path / "there.json", tmp_path / "new.html"
    there.write_text("of yesterday")
    config, *_ = files
    refusal(config, "--serving", "nothing.parquet", "--json", str(there), "--report", str(new))
    assert there.read_text() == "of yesterday" and not new.exists()


def without_clocks(path: Path) -> dict[str, Any]:
    """What is equal for equal seeds."""
    figures: dict[str, Any] = json.loads(path.read_text())
    for name in ("decide_ms", "run_s", "took_s"):
        del figures[name]
    return figures


def test_the_frontier_turns_each_policy_and_is_drawn(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, serving, jobs = files
    arguments = (
        config,
        "--serving",
        f"{serving}:1.2",
        "--jobs",
        jobs,
        "--policies",
        "ebbtide,static-p100,oracle,lyra-own",
    )
    outs = tmp_path / "a.json", tmp_path / "b.json"
    for out in outs:
        page = out.with_suffix(".html")
        found = run(*arguments, "--frontier", "--json", str(out), "--report", str(page), "--processes", "2")
        assert found.exit_code == 0, found.output
    first, again = map(without_clocks, outs)
    assert first == again, "equal seeds give equal results"
    frontier = first["frontier"]
    assert list(frontier) == ["ebbtide", "oracle", "static-p100", "lyra-own"]
    for name, points in frontier.items():
        trained = [one["goodput_gpu_s"] for one in points]
        assert trained == sorted(trained, reverse=True)
        assert first["policies"][name]["goodput_gpu_s"]["mean"] in trained
    assert len(frontier["oracle"]) == 1
    sizes = {one["headroom"]: one["slo_attainment"] for one in frontier["static-p100"]}
    assert sizes[1.3] >= sizes[0.5] and len(sizes) == 8
    page_text = (tmp_path / "a.html").read_text()
    assert page_text.count("<section>") == 5, "two tables of policies, waste, moves, bars"
    assert not re.search(r'(src|href)="(?!#)', page_text), "it needs nothing else"
    assert "with their own" in found.output and "with our starts" in found.output


@pytest.mark.filterwarnings("error")
def test_of_three_seconds_no_share_is_more_than_all(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, _, jobs = files
    few: Columns = {"t_s": [0.0, 1.0, 3.0], "in_tok": [500, 500, 500], "out_tok": [10, 10, 10]}
    out, page = str(tmp_path / "out.json"), str(tmp_path / "out.html")
    arguments = ("--policies", "all-serving,ebbtide", "--processes", "1", "--json", out, "--report", page)
    found = run(config, "--serving", str(written(tmp_path, few)), "--jobs", jobs, *arguments)
    assert found.exit_code == 0, found.output
    for one in json.loads(Path(out).read_text())["policies"].values():
        assert 0.0 <= one["waste_share"]["mean"] <= 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "magic"), "no policy magic: there are ebbtide"),
        (("--policies", "ebbtide,"), "no policy '': there are ebbtide"),
        (("--policies", ""), "no policy '': there are ebbtide"),
        (("--policies", "all,magic"), "no policy magic"),
        (("--serving", "SERVING:x"), "is there, but 'x' is no number: FILE[:factor[:from_day]]"),
        (("--jobs", "JOBS:x:2"), "is there, but 'x' is no number"),
        (("--jobs", "JOBS:1:abc"), "JOBS is there, but 'abc' is no number: FILE[:share[:from_day]]"),
        (("--serving", "SERVING:1:"), "SERVING is there, but '' is no number"),
        (("--ledger", ".:1:abc"), ". is there, but 'abc' is no number: FOLDER[:factor[:from_day]]"),
        (("--serving", "nothing.parquet:1:abc"), "nothing.parquet:1:abc: no such file"),
        (("--serving", "SERVING:1:2:3"), "is there, but more than two numbers follow it: FILE[:factor[:from_day]]"),
        (("--jobs", "JOBS:1.0000001"), "a share of 1.0000001 of its jobs cannot be kept; more than 0 and up to 1 can"),
        (("--serving", "nothing.parquet"), "nothing.parquet: no such file"),
        (("--serving", "SERVING"), "2 serving traces for 1 endpoints"),
        (("--serving", "SERVING:0"), "a rate cannot be multiplied by 0"),
        (("--serving", "SERVING:-2:0"), "a rate cannot be multiplied by -2"),
        (("--serving", "SERVING:1:9"), "cannot begin on day 9"),
        (("--serving", "JOBS"), "lacks the columns"),
        (("--jobs", "JOBS:1.5"), "a share of 1.5 of its jobs cannot be kept"),
        (("--jobs", "JOBS:nan"), "a share of nan of its jobs cannot be kept"),
        (("--jobs", "JOBS:1:1"), "cannot begin on day 1"),
        (("--jobs", "SERVING"), "lacks the column"),
        (("--seeds", "0"), "0 is not in the range"),
        (("--processes", "0"), "0 is not in the range"),
        (("--processes", "many"), "'many' is not a valid integer"),
        (("--json", "/"), "'/' is a directory"),
        (("--json", "one-file", "--report", "one-file"), "cannot both be written to one-file"),
        (("--json", "one-file", "--report", "./x/../one-file"), "cannot both be written to one-file"),
        (("--report", "-"), "--report needs a file"),
        (("--json", "SERVING"), "SERVING would be written over SERVING, which is read"),
        (("--jobs", "JOBS", "--report", "JOBS"), "JOBS would be written over JOBS, which is read"),
        (("--json", "CONFIG"), "CONFIG would be written over CONFIG, which is read"),
        (("--serving", "."), ". is no file"),
        (("--serving", "/dev/null"), "/dev/null is no file"),
        (("--loud",), "No such option"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    files: tuple[str, str, str], arguments: tuple[str, ...], message: str
) -> None:
    config, serving, jobs = files
    there = {"SERVING": serving, "JOBS": jobs, "CONFIG": config}

    def named(text: str) -> str:
        for name, path in there.items():
            text = text.replace(name, path)
        return text

    before = {path: Path(path).read_bytes() for path in there.values()}
    assert named(message) in refusal(config, "--serving", serving, *map(named, arguments))
    assert all(Path(path).read_bytes() == content for path, content in before.items())


def test_a_link_to_what_is_read_is_not_written_over_either(files: tuple[str, str, str], tmp_path: Path) -> None:
    link = tmp_path / "out.json"
    link.symlink_to(files[1])
    assert "which is read" in refusal(files[0], "--serving", files[1], "--json", str(link))


def test_all_may_stand_among_names_and_nobody_plays_twice() -> None:
    assert play.parse_policies("all") == play.parse_policies("all,ebbtide") == list(CONTENDERS)
    assert play.parse_policies(" lyra ,all")[:2] == ["lyra", "ebbtide"] and len(play.parse_policies("lyra,all")) == len(
        CONTENDERS
    )


@pytest.mark.parametrize("factor", ["nan", "inf", "1e300"])
def test_a_factor_that_is_none_is_refused_with_its_file(files: tuple[str, str, str], factor: str) -> None:
    assert f"{files[1]}: " in refusal(files[0], "--serving", f"{files[1]}:{factor}")


def test_times_in_another_unit_are_refused_with_their_file(files: tuple[str, str, str], tmp_path: Path) -> None:
    in_nanoseconds: Columns = {"t_s": [0.0, 6e14, 12e14], "rpm_mid": [60.0, 60.0, 60.0]}
    path = written(tmp_path, in_nanoseconds)
    assert f"{path}: " in refusal(files[0], "--serving", str(path))


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_a_folder_that_is_not_there_is_told_before_anything_runs(files: tuple[str, str, str], option: str) -> None:
    assert "out" in refusal(files[0], "--serving", files[1], option, "/no/such/folder/out")


@pytest.mark.parametrize(
    ("keep", "option", "path", "message"),
    [
        ("new", "--json", "new", "--json and --keep cannot both be TMP/new"),
        ("new", "--report", "./x/../new", "--report and --keep cannot both be TMP/"),
        ("new/runs", "--json", "new", "--json TMP/new cannot be written: it is a folder"),
    ],
)
def test_a_file_and_the_folder_of_runs_have_each_a_place(
    files: tuple[str, str, str], tmp_path: Path, keep: str, option: str, path: str, message: str
) -> None:
    named = ("--keep", str(tmp_path / keep), option, f"{tmp_path}/{path}")
    assert message.replace("TMP", str(tmp_path)) in refusal(files[0], "--serving", files[1], *named)


def test_files_may_be_in_the_folder_of_runs_that_is_made_for_them(files: tuple[str, str, str], tmp_path: Path) -> None:
    keep = tmp_path / "new"
    told = refusal(files[0], "--serving", "none.csv", "--keep", str(keep), "--report", str(keep / "out.html"))
    assert "none.csv: no such file" in told and keep.is_dir() and not list(keep.iterdir())


def test_figures_for_a_stdout_that_is_closed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(BadInput, match="stdout is closed"):
        check_outputs(Path(STDOUT), None, None, [])


def test_without_traffic_there_is_nothing_to_play(files: tuple[str, str, str]) -> None:
    assert "name traffic by --serving" in refusal(files[0], "--jobs", files[2])


def test_more_demand_than_the_pool_is_refused_with_a_scale_that_fits(files: tuple[str, str, str]) -> None:
    config, serving, _ = files
    assert "the pool has 4; scale it by less than" in refusal(config, "--serving", f"{serving}:100")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (
            "pool: {nodes: 1, gpus_per_node: 2}\nendpoints: [{name: x, engine: gpt}]\n",
            "2:12",
            "endpoint x: no engine gpt",
        ),
        ("pool: {nodes: 1}\nengines: {mine: {prefill_tok_s: 0}}\nendpoints: [{name: x}]\n", "2:33", "greater than 0"),
        ("pool: {nodes: 1}\nendpoints: [{name: x}, {name: x}]\n", "1:1", "two endpoints have one name"),
        ("pool: {nodes: 0}\nendpoints: [{name: x}]\n", "1:15", "greater than or equal to 1"),
        ("pool: {nodes: 1}\nendpoints: [{name: x}]\nrun: {hours_max: 0}\n", "3:18", "greater than or equal to 0.01"),
        ("pool: {nodes: 1}\nendpoints: [{name: x}]\nrun: {tick_s: 0.001}\n", "3:15", "greater than or equal to 0.1"),
        ("pool: {nodes: 1}\nendpoints: [{name: x}]\nfailures: {gpu_hours_each: 1e-300}\n", "3:28", "or equal to 1"),
        ("pool: {nodes: 1}\nendpoints: [{name: x}]\nrun: {tick_s: .inf}\n", "3:15", "finite"),
        (
            "pool: {nodes: 1}\nendpoints: [{name: x, engine: llama-70b-4xh100}, {name: y, engine: llama-70b-4xh100}, "
            "{name: z}]\n",
            "1:1",
            "a replica of each endpoint takes 9 GPUs, the pool has 8",
        ),
        (
            "pool: {nodes: 2, gpus_per_node: 3}\nengines: {two: {prefill_tok_s: 1, decode_tok_s: 1, gpus: 2}}\n"
            "endpoints: [{name: x, engine: two}, {name: y, engine: two}, {name: z, engine: two}]\n",
            "1:1",
            "the room of 3 with 2 GPUs of one node, and 2 nodes of 3 have it for 2",
        ),
        (
            "pool: {nodes: 1}\nendpoints: [{name: x}]\njobs: {shortest_s: 500, longest_s: 100}\n",
            "3:7",
            "shortest_s, 500, is more than longest_s, 100: no job is left",
        ),
        ("pool: {nodes: 1, reserve: 8}\nendpoints: [{name: x}]\n", "1:1", "the reserve is the whole pool"),
        ("pool: {nodes: 1}\n", "1:1", "endpoints"),
        ("", "1:1", ""),
        ("pool: [", "1:", ""),
    ],
)
def test_a_wrong_file_is_told_of_with_line_and_column(
    files: tuple[str, str, str], tmp_path: Path, text: str, place: str, message: str
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    told = refusal(str(tmp_path / "bad.yaml"), "--serving", files[1])
    assert f"bad.yaml:{place}" in told and message in told


def test_what_the_simulator_itself_does_wrong_is_not_called_bad_input(
    files: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_args: object, **_named: object) -> None:
        np.zeros(2).reshape(3)

    monkeypatch.setattr(play, "play", wrong)
    found = run(files[0], "--serving", files[1])
    assert isinstance(found.exception, ValueError) and "bad input" not in found.output and found.exit_code != MISUSED


def test_who_did_not_decide_is_not_said_to_have_taken_no_time(files: tuple[str, str, str], tmp_path: Path) -> None:
    config, serving, jobs = files
    arguments = ("--policies", "oracle,ebbtide", "--processes", "1", "--json", "-")
    found = run(config, "--serving", serving, "--jobs", jobs, *arguments)
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    assert list(figures["decide_ms"]) == ["ebbtide"] and list(figures["run_s"]) == ["ebbtide", "oracle"]
    assert figures["policies"]["ebbtide"]["slo_attainment"]["ci95"] is None, "of one seed"


def test_a_file_that_is_not_there_is_told(files: tuple[str, str, str]) -> None:
    assert "none.yaml" in refusal("none.yaml", "--serving", files[1])


def test_what_is_left_out_is_told_with_its_number_before_anything_runs(
    files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, serving, _ = files
    rows: Columns = {"submit_s": [0.0, 1.0, 2.0], "gpus": [1, 4, 64], "duration_s": [600.0, 600.0, 10.0]}
    (tmp_path / "wide").mkdir()
    jobs = str(written(tmp_path / "wide", rows))

    def begins(*_args: object, **_named: object) -> None:
        raise BadTrace("it would play now")

    monkeypatch.setattr(play, "ProcessPoolExecutor", begins)
    told = run(config, "--serving", serving, "--jobs", jobs).stderr
    assert (
        "trace.parquet: 2 of 3 jobs ask for up to 64 GPUs, of which no gang can have more than 3 here: left out" in told
    )
    assert "shorter" not in told and "trace.parquet: 1 job of 3 left\n" in told, "one job has one reason"
    assert told.endswith("it would play now\n")


def too_much(config: Path, serving: Path, seed: int) -> bool:
    try:
        scene(*load_inputs(config, [(serving, 1.0, 0.0)], []), seed)
    except BadTrace:
        return True
    return False


def test_a_seed_that_draws_more_than_the_pool_is_refused_before_anything_runs(
    files: tuple[str, str, str], tmp_path: Path
) -> None:
    """One draw in some is too much: whichever it is, no run is wasted on the others."""
    config = tmp_path / "one.yaml"
    config.write_text(CONFIG.replace("gpus_per_node: 4", "gpus_per_node: 1"))
    per_min = 0.975 * 60 * ENGINE.full / ENGINE.work_s(500, 100)  # of what makes the one replica full
    serving = written(tmp_path, {"t_s": [60.0 * minute for minute in range(30)], "rpm_mid": [per_min] * 30})
    seeds = [seed for seed in range(40) if too_much(config, serving, seed)]
    assert 0 not in seeds and seeds, "the test needs a load that only some seeds draw too high"
    found = run(str(config), "--serving", str(serving), "--seeds", str(seeds[0] + 1), "--processes", "1")
    assert found.exit_code == MISUSED and "the pool has 1" in found.output


@pytest.mark.parametrize(
    ("better", "message"),
    [
        ({"goodput_gpu_s": 1e12}, "and the bound is"),
        ({"goodput_gpu_s": 1e11, "work_done_gpu_s": 1e11, "bound_gpu_s": 1e12}, "and with perfect foresight it is"),
        ({"work_done_gpu_s": 1e12}, ""),  # what is done in the warm-up is not scored
        ({"goodput_gpu_s": 1e12, "slo_attainment": 0.9}, ""),
        ({}, ""),
    ],
)
def test_a_run_that_contradicts_the_bound_or_foresight_fails_and_still_says_what_it_found(
    files: tuple[str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    better: dict[str, float],
    message: str,
) -> None:
    """What our policy is said to come to is forged; who does not serve is not compared."""

    def forged(self: Report, name: str, seed: int, found: Played) -> None:
        served = {"slo_attainment": 1.0} | (better if name == "ebbtide" and seed == 1 else {})
        self.runs.setdefault(name, {})[seed] = replace(found, figures=found.figures | served)

    monkeypatch.setattr(Report, "add", forged)
    config, serving, jobs = files
    out = tmp_path / "out.json"
    found = run(
        *(config, "--serving", serving, "--jobs", jobs, "--policies", "ebbtide,oracle", "--seeds", "2"),
        *("--json", str(out), "--processes", "1"),
    )
    told = json.loads(out.read_text())["impossible"]
    if message:
        assert found.exit_code == 1 and "the simulator contradicts itself: ebbtide, seed 1: " in found.output
        assert message in found.output and told
    else:
        assert (found.exit_code, told) == (0, [])


def test_a_picture_of_a_long_run_has_means_and_not_every_point() -> None:
    hours, (counts,) = drawn_course([list(range(10_000))], COURSE_S)
    assert len(hours) == len(counts) <= POINTS
    assert hours[0] == 0 and hours[-1] < 10_000 * COURSE_S / 3600
    assert counts[0] == pytest.approx((25 - 1) / 2) and counts == sorted(counts)
    assert drawn_course([[1, 3], [2, 2]], COURSE_S) == ([0.0, COURSE_S / 3600], [[1.0, 3.0], [2.0, 2.0]])


def test_without_its_extra_it_says_what_to_install(
    files: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, traffic, _ = files
    monkeypatch.setattr(command_simulate, "find_spec", lambda name: None if name == "numba" else object())
    done = CliRunner().invoke(simulate, [config, "--serving", traffic], standalone_mode=False)
    assert isinstance(done.exception, CommandFailed)
    assert str(done.exception) == "a simulation needs numba: pip install 'ebbtide[simulate]'"
