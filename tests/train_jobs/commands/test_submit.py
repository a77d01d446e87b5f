"""``ebbtide submit`` says how the job will step aside, and submits it whatever the answer is."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.system.interrupts import Terminated
from ebbtide_train.commands import submit
from ebbtide_train.submission.training_job import Submitted, watch
from tests.train_jobs.fake_link import FakeLink

FILE = """
pool: {name: example}
jobs:
  - {name: lm, entrypoint: "mine:train", workers: {max: 2}, global_batch: 8, micro_batch: 1}
"""
JOB = {"job": "lm", "state": "ended", "slots": [], "since_s": 1.0, "waits": None}
PARKS = {"tier": "evict_and_cuda", "words": "park in place: 1 GB go to host memory", "warning": ""}
KILLED = {"tier": "kill", "words": "kill at the deadline", "warning": "it cannot park in place, it loses work: x"}


def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aside: dict[str, Any] | None) -> tuple[Result, FakeLink]:
    link = FakeLink(status=lambda: {"jobs": []}, how_aside=lambda _spec: aside)
    monkeypatch.setattr(submit, "world_problems", lambda *_, **__: [])
    monkeypatch.setattr(submit, "_pool_of", lambda _: ClusterRecord("example", "a", "", "", "/s", ""))
    monkeypatch.setattr(submit, "_service", lambda _: None)
    monkeypatch.setattr(submit, "ArbiterLink", lambda: link)
    monkeypatch.setattr(submit, "submit", lambda *_, fresh, before: Submitted("lm", "lm-1", 0.0))
    (tmp_path / "jobs.yaml").write_text(FILE)
    arguments = [str(tmp_path / "jobs.yaml"), "--no-follow", "--json"]
    return CliRunner().invoke(submit.submit_command, arguments, catch_exceptions=False), link


def test_one_line_says_how_it_will_step_aside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, link = submitted(monkeypatch, tmp_path, PARKS)
    assert "job lm: when others need its slots: park in place: 1 GB go to host memory\n" in found.stderr
    assert "warning" not in found.stderr and json.loads(found.stdout)["steps_aside"] == PARKS
    (spec,) = next(arguments for method, arguments in link.calls if method == "how_aside")
    assert getattr(spec, "name", "") == "lm"


def test_a_warning_blocks_nothing_and_an_arbiter_that_is_away_neither(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, _ = submitted(monkeypatch, tmp_path, KILLED)
    assert found.exit_code == 0 and "job lm: warning: it cannot park in place, it loses work: x\n" in found.stderr
    found, _ = submitted(monkeypatch, tmp_path, None)
    assert found.exit_code == 0 and json.loads(found.stdout)["steps_aside"] is None
    assert "when others need" not in found.stderr


class Service:
    """Ray's, for a job that ends at once, or does not."""

    def __init__(self, status: str = "FAILED") -> None:
        self.status = status

    def get_job_status(self, job_id: str) -> str:
        return self.status

    def get_job_logs(self, job_id: str) -> str:
        return ""

    async def tail_job_logs(self, job_id: str):  # type: ignore[no-untyped-def]
        yield "a line of its log\n"


@pytest.mark.parametrize("follow", [[], ["--follow"]])
@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [
        ("finished: at step 3 of 3", 0, ""),
        ("failed: rank 0: KeyError: 'x' (mine.py:3)\n-- rank 0 --", 1, "Error: job lm failed: rank 0: KeyError: 'x'"),
        ("cancelled: by me", 1, "Error: job lm was cancelled: by me"),
    ],
)
def test_the_exit_code_is_the_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, follow: list[str], outcome: str, code: int, says: str
) -> None:
    looks: list[dict[str, Any]] = [{"jobs": []}, {"jobs": [JOB | {"outcome": outcome}]}]
    link = FakeLink(status=lambda: looks.pop(0) if len(looks) > 1 else looks[0], how_aside=lambda _spec: None)
    monkeypatch.setattr(submit, "world_problems", lambda *_, **__: [])
    monkeypatch.setattr(submit, "_pool_of", lambda _: ClusterRecord("example", "a", "", "", "/s", ""))
    monkeypatch.setattr(submit, "_service", lambda _: Service())
    monkeypatch.setattr(submit, "ArbiterLink", lambda: link)
    monkeypatch.setattr(submit, "submit", lambda *_, fresh, before: Submitted("lm", "lm-1", 0.0))
    (tmp_path / "jobs.yaml").write_text(FILE)
    found = CliRunner().invoke(submit.submit_command, [str(tmp_path / "jobs.yaml"), *follow])
    assert found.exit_code == code, found.output
    last = found.stderr.splitlines()[-1]
    assert last.startswith(says) and (not says or last.endswith("more: `ebbtide logs lm`"))


def test_its_own_size_is_told_once_it_runs_in_the_words_that_why_will_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = PARKS | {"words": "park in place: 1 GB go to host memory (at most)"}
    runs = JOB | {"state": "running", "slots": ["n:0"], "step": 7}
    for own, lines in ((PARKS, [declared, PARKS]), (declared, [declared]), (None, [declared])):
        states = [{"jobs": []}, *({"jobs": [runs | {"steps_aside": own, "step": step}]} for step in range(20))]
        link = FakeLink(status=lambda states=states: states.pop(0), how_aside=lambda _spec: declared)
        now = iter(map(float, range(100)))
        monkeypatch.setattr(submit, "world_problems", lambda *_, **__: [])
        monkeypatch.setattr(submit, "_pool_of", lambda _: ClusterRecord("example", "a", "", "", "/s", ""))
        monkeypatch.setattr(submit, "_service", lambda _: Service("RUNNING"))
        monkeypatch.setattr(submit, "ArbiterLink", lambda link=link: link)
        monkeypatch.setattr(submit, "submit", lambda *_, fresh, before: Submitted("lm", "lm-1", 0.0))
        quick = partial(watch, sleep=lambda _: None, clock=partial(next, now))
        with monkeypatch.context() as patch:
            patch.setattr(submit, "watch", quick)
            (tmp_path / "jobs.yaml").write_text(FILE)
            found = CliRunner().invoke(submit.submit_command, [str(tmp_path / "jobs.yaml")], catch_exceptions=False)
        assert found.exit_code == 0
        told = [line for line in found.stderr.splitlines() if "when others need" in line]
        assert told == [f"job lm: when others need its slots: {one['words']}" for one in lines]


@pytest.mark.parametrize("where", [[], ["--follow"]])
@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt(), 0), (Terminated(signal.SIGTERM), 143)])
def test_who_ends_the_watching_hears_that_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: list[str], ended: BaseException, code: int
) -> None:
    def watched(*_: object, **__: object) -> None:
        raise ended

    submitted(monkeypatch, tmp_path, PARKS)
    monkeypatch.setattr(submit, "watch", watched)
    done = CliRunner().invoke(submit.submit_command, [str(tmp_path / "jobs.yaml"), "--json", *where])
    assert done.exit_code == code, done.output
    assert (json.loads(done.stdout)["job"], json.loads(done.stdout)["state"]) == ("lm", "submitted")
    assert (
        "job lm goes on in the pool: `ebbtide logs lm --follow` follows it, `ebbtide cancel lm` ends it" in done.stderr
    )
