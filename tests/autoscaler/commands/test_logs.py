"""Which run's logs are shown, and how following a log ends."""

import json
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from ebbtide_autoscaler.cluster.node_names import Node
from ebbtide_autoscaler.commands import logs as logs_command
from ebbtide_autoscaler.commands.log_reader import LogFile
from ebbtide_autoscaler.commands.logs import Readers, until_ctrl_c
from tests.builders.json_shape import check


def test_the_first_ctrl_c_is_an_event_wherever_it_comes_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with until_ctrl_c() as over:
        assert not over.is_set()
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException as error:  # noqa: BLE001 - nothing at all may come out here
            pytest.fail(f"{error!r} could be caught by whoever was running")
        assert over.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            over.clear()
            over.wait(5)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_way_out_is_restored_after_an_error_too() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(LookupError), until_ctrl_c():
        raise LookupError
    assert signal.getsignal(signal.SIGINT) is before


FILES = {  # two runs, oldest file first
    LogFile("rank 0", "worker-ab-04000000-11.out", 9, 10.0): "first try",
    LogFile("driver", "job-driver-lm-aaaaaaaa.log", 9, 11.0): "failed",
    LogFile("rank 0", "worker-cd-06000000-12.out", 9, 20.0): "second try",
    LogFile("driver", "job-driver-lm-bbbbbbbb.log", 9, 21.0): "finished",
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Runs `ebbtide logs lm` with options, on a node with these files."""

    def ask(_self: Readers, _node: str, method: str, *args: Any) -> Any:
        texts = {file.path: f"{text}\n".encode() for file, text in FILES.items()}
        answers: dict[str, Any] = {
            "find": lambda _: list(FILES),
            "tail_start": lambda *_: 0,
            "read": lambda name, at: texts[name][at:],
        }
        return answers[method](*args)

    monkeypatch.setattr(Readers, "ask", ask)
    monkeypatch.setattr(logs_command, "cluster_nodes", lambda: (Node("n", "box"),))
    monkeypatch.setattr(logs_command, "join_pool", lambda _: SimpleNamespace(shared_dir=str(tmp_path)))
    monkeypatch.setattr(logs_command, "actors", list)
    jobs = [{"job": "lm", "pids": {}, "slots": []}]
    link = SimpleNamespace(call=lambda *_, **__: {"jobs": jobs, "endpoints": []})
    monkeypatch.setattr(logs_command, "ArbiterLink", lambda: link)

    def run(*options: str) -> Result:
        return CliRunner().invoke(cli, ["logs", "lm", *options], catch_exceptions=False)

    return run


def test_the_latest_run_is_shown_and_that_there_are_others_is_said(shown: Any) -> None:
    found = shown()
    assert [line for line in found.stdout.splitlines() if not line.startswith("==>")] == ["second try", "finished"]
    assert "this is the latest run, lm-bbbbbbbb; --all shows 1 earlier one too" in found.stderr


def test_all_runs_have_a_heading_each(shown: Any) -> None:
    found = shown("--all")
    assert [line for line in found.stdout.splitlines() if not line.startswith("==>")] == [
        "===== run lm-aaaaaaaa =====",
        "first try",
        "failed",
        "===== run lm-bbbbbbbb =====",
        "second try",
        "finished",
    ]
    assert "latest run" not in found.stderr


def test_a_run_is_asked_for_by_the_id_that_submit_printed(shown: Any) -> None:
    found = json.loads(shown("--run", "lm-aaaaaaaa", "--json").stdout)
    check("logs", found)
    assert [(one["run"], one["lines"]) for one in found["logs"]] == [
        ("lm-aaaaaaaa", ["first try"]),
        ("lm-aaaaaaaa", ["failed"]),
    ]
    wrong = shown("--run", "lm-1")
    assert wrong.exit_code == 2 and "lm has no run 'lm-1' whose logs are here; there are lm-aaaa" in wrong.stderr
    both = shown("--run", "lm-aaaaaaaa", "--all")
    assert both.exit_code == 2 and both.stdout == ""


def test_what_is_followed_begins_with_the_latest_run_and_does_not_go_back(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OverAfter:
        left = 3

        def is_set(self) -> bool:
            self.left -= 1
            return self.left < 0

        def wait(self, _s: float) -> bool:
            return False

    class Ctrl:
        def __enter__(self) -> OverAfter:
            return OverAfter()

        def __exit__(self, *_: object) -> None:
            """Nothing to restore."""

    monkeypatch.setattr(logs_command, "until_ctrl_c", Ctrl)
    monkeypatch.setattr(logs_command, "LOOK_AGAIN_S", -1.0)
    found = shown("--follow")
    assert "second try" in found.stdout and "first try" not in found.stdout
