"""``ebbtide submit`` says how the job will step aside, and submits it whatever the answer is."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_train.commands import submit
from ebbtide_train.submission.training_job import Submitted
from tests.train_jobs.fake_link import FakeLink

FILE = """
pool: {name: example}
jobs:
  - {name: lm, entrypoint: "mine:train", workers: {max: 2}, global_batch: 8, micro_batch: 1}
"""
PARKS = {"tier": "evict_and_cuda", "words": "park in place: 1 GB go to host memory", "warning": ""}
KILLED = {"tier": "kill", "words": "kill at the deadline", "warning": "it cannot park in place, it loses work: x"}


def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aside: dict[str, Any] | None) -> tuple[Result, FakeLink]:
    link = FakeLink(status=lambda: {"jobs": []}, how_aside=lambda _spec: aside)
    monkeypatch.setattr(submit, "world_problems", lambda *_, **__: [])
    monkeypatch.setattr(submit, "_pool_of", lambda _: ClusterRecord("example", "a", "", "", "/s", ""))
    monkeypatch.setattr(submit, "_service", lambda _: None)
    monkeypatch.setattr(submit, "ArbiterLink", lambda: link)
    monkeypatch.setattr(submit, "submit", lambda *_: Submitted("lm", "lm-1", 0.0))
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
