"""Submitting a job and watching it, with Ray's job service and the arbiter played by the test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.cli.terminal.errors import BadInput
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.config.loading.pool_file_loader import load, load_text
from ebbtide_train.arbiter_client.state_lines import job_view
from ebbtide_train.submission.job_selection import pick
from ebbtide_train.submission.training_job import FILE_NAME, Standing, Submitted, failure, standing, submit, watch
from tests.train_jobs.fake_link import FakeLink

TEXT = """
pool: {name: tide}
jobs:
  - name: first
    entrypoint: mine:train
    working_dir: code
    class: semi-preemptible
    workers: {max: 2}
    global_batch: 4
    micro_batch: 2
    args: {steps: 3, data: data/x}
  - {name: second, entrypoint: "mine:train", workers: {max: 1}, global_batch: 1, micro_batch: 1}
"""
RECORD = ClusterRecord("tide", "127.0.0.1:6000", "http://127.0.0.1:6001", "", "/shared", "")


class FakeService:
    """Takes a job, and looks at its upload as Ray would."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses)
        self.given: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        self.logs = ""

    def submit_job(self, **given: Any) -> str:
        self.given = given
        folder = Path(given["runtime_env"]["working_dir"])
        self.files = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
        return str(given["submission_id"])

    def get_job_status(self, job_id: str) -> str:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def get_job_logs(self, job_id: str) -> str:
        return self.logs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def train(args): ...\n")
    path = tmp_path / "pool.yaml"
    path.write_text(TEXT)
    return path


def test_the_job_travels_with_its_code_and_without_the_rest_of_the_file(file: Path, tmp_path: Path) -> None:
    section = pick(load(file), "first")
    service = FakeService("PENDING")
    found = submit(service, section, RECORD)
    assert found.job == "first"
    assert found.submission_id.startswith("first-")
    assert service.given["entrypoint"] == f"python -m ebbtide_train.run {FILE_NAME} --working-dir . --job first"
    assert service.given["runtime_env"]["env_vars"] == {
        "EBBTIDE_RAY_ADDRESS": "127.0.0.1:6000",
        "RAY_JOB_STOP_WAIT_TIME_S": "35",  # `ray job stop` gives it its grace, to leave with a checkpoint
    }
    assert service.given["metadata"]["ebbtide_job"] == "first"
    assert set(service.files) == {"mine.py", FILE_NAME}
    assert "second" not in service.files[FILE_NAME]
    arrived = load_text(service.files[FILE_NAME], path=tmp_path / FILE_NAME).config
    assert arrived.jobs == (section.model_copy(update={"working_dir": None}),)
    assert arrived.is_submission
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == ["mine.py"]  # nothing was written there


def test_a_shared_directory_inside_the_working_dir_stays_behind(file: Path, tmp_path: Path) -> None:
    service = FakeService("PENDING")
    submit(service, pick(load(file), "first"), replace(RECORD, shared_dir=str(tmp_path / "code" / "out" / "shared")))
    assert service.given["runtime_env"]["excludes"] == ["/out/shared"]
    submit(service, pick(load(file), "first"), RECORD)
    assert service.given["runtime_env"]["excludes"] == []


@pytest.mark.parametrize(("name", "says"), [(None, "has 2 jobs"), ("third", "no job 'third'; it has first, second")])
def test_a_job_that_is_not_named_well_is_refused(file: Path, name: str | None, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        pick(load(file), name)


def view(
    state: str, waits: str = "", since_s: float = 1000.0, slots: int = 0, step: int = 0, **more: Any
) -> dict[str, Any]:
    job = {
        "job": "first",
        "state": state,
        "waits": waits,
        "slots": ["n:0"] * slots,
        "since_at_s": since_s,
        "outcome": "x",
        "step": step,
    }
    return {"jobs": [job | more]}


def watched(views: list[dict[str, Any] | None], *statuses: str, steady: bool = True) -> tuple[str, list[str]]:
    """Every look takes a second."""
    lines, now = list[str](), iter(range(1_000))
    link = FakeLink(status=lambda: views.pop(0))
    last = watch(
        FakeService(*statuses),
        link,
        Submitted("first", "first-1", 1000.0),
        say=lines.append,
        sleep=lambda s: None,
        clock=lambda: float(next(now)),
        steady=steady,
    )
    return last.state, lines


def running(*steps: int) -> list[dict[str, Any] | None]:
    return [view("running", slots=1, step=step) for step in steps]


def test_watching_says_each_reason_once_and_ends_when_the_job_runs() -> None:
    waiting = view("waiting", "waits: needs 1 slot, 0 free for it")
    views: list[dict[str, Any] | None] = [
        None,
        {"jobs": []},
        waiting,
        waiting,
        view("starting", slots=2),
        *[view("running", slots=2, step=step) for step in range(10)],
    ]
    assert watched(views, "PENDING", "RUNNING") == (
        "running",
        [
            "job first: its driver is pending",
            "job first: its driver is running",
            "job first: waits: needs 1 slot, 0 free for it",
            "job first: starting on 2 slots",
            "job first: running on 2 slots",
        ],
    )


def test_an_earlier_run_of_the_same_name_is_not_taken_for_this_one() -> None:
    state, lines = watched([view("ended", since_s=500.0), *running(*range(10))], "RUNNING")
    assert (state, lines) == ("running", ["job first: its driver is running", "job first: running on 1 slot"])


FAILS = "failed: rank 0: ValueError: no loss (mine.py:3); not tried again: it failed alike at step 3 before"


def test_a_job_that_fails_a_moment_after_it_ran_has_failed_and_that_is_left_to_the_caller_to_say() -> None:
    again = view("recovering", last_error="rank 0: ValueError: no loss (mine.py:3)\n-- rank 0 --\na page", step=3)
    backs_off = [
        view("waiting", f"waits: crashed 1 time, next try in {left} s; the last time because: x", step=3)
        for left in (3, 2, 1)
    ]
    views = [*running(1, 3), again, *backs_off, view("starting", slots=1, step=2), *running(2, 3)]
    state, lines = watched([*views, view("ended", outcome=FAILS)], "RUNNING")
    assert (state, lines) == (
        "ended",
        [
            "job first: running on 1 slot",
            "job first: recovering: rank 0: ValueError: no loss (mine.py:3)",
            "job first: waits: crashed 1 time, next try in 3 s; the last time because: x",
            "job first: starting on 1 slot",
            "job first: running on 1 slot",
        ],
    )


def test_a_job_that_crashed_is_watched_until_it_gets_further_than_before() -> None:
    crashed = [view("recovering", step=400), view("starting", slots=1, step=390)]
    left = [*running(400), *crashed, *running(*[391] * 9, *[399] * 9, 400, 401), view("ended", outcome=FAILS)]
    assert watched(left, "RUNNING")[0] == "running" and len(left) == 1, "step 401 is news"


def test_a_job_whose_steps_take_long_is_not_watched_for_ever_and_a_log_is_followed_at_once() -> None:
    left = running(*[0] * 200)
    assert watched(left, "RUNNING")[0] == "running" and 120 < len(left) < 160
    left = running(0, 0, 0)
    assert watched(left, "RUNNING", steady=False)[0] == "running" and len(left) == 2


def test_a_park_on_the_way_is_not_its_end() -> None:
    aside = [view("parking", slots=1, step=2), view("parked", step=2), view("resuming", slots=1, step=2)]
    left = [*running(1, 2), *aside, *running(2, 2, 2, 3, 3, 3, 3)]
    assert watched(left, "RUNNING")[0] == "running" and left == running(3)


@pytest.mark.parametrize("outcome", [FAILS, "cancelled: by me", "lost: its driver has been silent for 10 s"])
def test_an_end_that_is_an_error_is_told_once(outcome: str) -> None:
    assert watched([view("ended", outcome=outcome)], "RUNNING") == ("ended", [])
    done = watched([view("ended", outcome="finished: at step 3 of 3")], "RUNNING")
    assert done == ("ended", ["job first: ended: finished: at step 3 of 3"])


def test_watching_ends_when_the_driver_fails_before_the_pool_knows_the_job() -> None:
    assert watched([None, None], "RUNNING", "FAILED")[0] == "submitted"


def test_the_file_says_json(file: Path) -> None:
    service = FakeService("PENDING")
    submit(service, pick(load(file), "second"), RECORD)
    assert json.loads(service.files[FILE_NAME])["jobs"][0]["name"] == "second"


SUBMITTED = Submitted("first", "first-1", 1000.0)


@pytest.mark.parametrize(
    ("state", "ray_status", "outcome", "says"),
    [
        ("running", "RUNNING", "", ""),
        ("ended", "RUNNING", "finished: at step 3 of 3", ""),
        ("ended", "SUCCEEDED", "finished: already at step 3 of 3: nothing was trained", ""),
        ("submitted", "SUCCEEDED", "", ""),
        (
            "ended",
            "RUNNING",  # the driver has said it and not ended yet
            "failed: rank 1: KeyError: 'x' (mine.py:3); not tried again: y\n-- rank 1 --\na page of traceback",
            "job first failed: rank 1: KeyError: 'x' (mine.py:3); not tried again: y; more: `ebbtide logs first`",
        ),
        ("ended", "FAILED", "cancelled: by me", "job first was cancelled: by me; more: `ebbtide logs first`"),
        ("ended", "FAILED", "lost: silent", "job first was lost: silent; more: `ebbtide logs first`"),
        ("submitted", "FAILED", "", "job first failed: there is no module 'mine'; more: `ebbtide logs first`"),
    ],
)
def test_a_job_that_did_not_finish_is_told_in_one_line_that_begins_with_the_cause(
    state: str, ray_status: str, outcome: str, says: str
) -> None:
    service = FakeService(ray_status)
    for last in ("Error: ", "Error: job first failed: ", "ebbtide: job first: failed: "):
        service.logs = f"2026 INFO worker.py\nUsage: x\n{last}there is no module 'mine'\n\n"
        assert failure(service, SUBMITTED, Standing(state, "", ray_status, outcome)) == says


def test_a_driver_that_printed_nothing_is_told_too() -> None:
    found = failure(FakeService("FAILED"), SUBMITTED, Standing("submitted", "", "FAILED"))
    assert found.startswith("job first failed: Ray says that its driver has failed")


def test_watching_to_the_end_goes_on_while_it_runs() -> None:
    views: list[dict[str, Any] | None] = [view("running", slots=1), view("running", slots=1), view("ended")]
    link, lines = FakeLink(status=lambda: views.pop(0)), list[str]()
    last = watch(FakeService("RUNNING"), link, SUBMITTED, say=lines.append, sleep=lambda s: None, to_the_end=True)
    assert (last.state, last.outcome) == ("ended", "x")


def test_a_fresh_one_says_so_to_its_driver(file: Path) -> None:
    service = FakeService("PENDING")
    submit(service, pick(load(file), "first"), RECORD, fresh=True)
    assert service.given["entrypoint"].endswith("--job first --fresh")


def test_the_end_of_a_run_a_moment_ago_is_not_taken_for_the_end_of_this_one(file: Path) -> None:
    """Submitted again at once after a cancel: the pool has the earlier run's record until the new driver registers."""
    earlier, later = view("ended", since_s=998.0), view("ended", since_s=1004.0)
    before = job_view(earlier, "first")
    submitted = submit(FakeService("PENDING"), pick(load(file), "first"), RECORD, before=before)
    submitted = replace(submitted, job="first", at_s=1000.0)
    states = [earlier, earlier, later]
    seen = [standing(FakeService("RUNNING"), FakeLink(status=lambda now=now: now), submitted).state for now in states]
    assert seen == ["submitted", "submitted", "ended"]
