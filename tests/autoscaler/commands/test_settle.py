"""The end of `ebbtide up`: what it says, and with which exit code."""

from typing import Any

import click
import pytest

from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.config.pool_file import PoolFile
from ebbtide_autoscaler.commands import settle as module
from ebbtide_autoscaler.commands.settle import settle
from ebbtide_autoscaler.core.observe.alerts import FreezeCause
from ebbtide_autoscaler.lifecycle import progress
from tests.builders.commands import no_sleep
from tests.builders.pool_files import file


class Link:
    """An arbiter that answers from a list, the last answer for ever."""

    def __init__(self, *answers: dict[str, Any] | None, rolling: tuple[dict[str, list[str]], ...] = ({},)) -> None:
        self.answers, self.rolling = list(answers), list(rolling)

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        queue: list[Any] = self.answers if method == "status" else self.rolling
        return queue.pop(0) if len(queue) > 1 else queue[0]


def status(state: str = "cold", failures: int = 0, waits: str | None = None, **arbiter: object) -> dict[str, Any]:
    seat = {"seat": "chat/0", "state": state, "stale": False, "waits": None}
    revision = file(1).endpoints[0].revision()
    one = {
        "endpoint": "chat", "replicas_min": 1, "revision": revision, "failures": failures, "waits": waits,
        "seats": [seat], "last_error": "it did not start: no luck" if failures else None,
        "failed_seat": "chat/0" if failures else None,
    }  # fmt: skip
    return {"arbiter": arbiter, "endpoints": [one]}


def settled(
    monkeypatch: pytest.MonkeyPatch, link: Link, config: PoolFile | None = None, *, another: bool = False
) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(module, "ArbiterLink", lambda: link)
    monkeypatch.setattr(module, "until_done", no_sleep(progress.until_done))
    assert settle(config or file(1), {}, had_another_file=another, say=said.append) == {}
    return said


def test_it_says_each_step_and_is_done_when_a_replica_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(status(), status("starting"), None, status("starting", 1), status("ready"))
    assert settled(monkeypatch, link) == [
        "still to come: chat: it has no replica yet",
        "still to come: chat: its first replica starts",
        "the arbiter does not answer; everything that runs goes on",
        "still to come: chat: its first replica starts; a start failed: it did not start: no luck",
    ]


@pytest.mark.parametrize(
    ("another", "remedy"),
    [
        (False, "The pool is up and stays up: mend the file and run `ebbtide up` with it again, or `ebbtide down`."),
        (True, "The file is in force: `ebbtide up --rollback` puts the one before back, or mend it and `ebbtide up` "
               "again."),
    ],
)  # fmt: skip
def test_two_failed_starts_end_it_with_the_cause_and_the_remedy(
    another: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed) as failed:
        settled(monkeypatch, Link(status("starting", 1), status("stopping", 2)), another=another)
    assert isinstance(failed.value, click.ClickException) and failed.value.exit_code == 1
    first, second = failed.value.message.splitlines()
    assert first.startswith("chat: it did not start: no luck (2 starts failed in a row; ") and second == remedy


def test_what_waits_for_slots_is_left_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITS_S", 0.0)
    said = settled(monkeypatch, Link(status(waits="no slot is free: job lm is at its minimum")))
    assert said == [
        "still to come: chat: it has no replica yet; no slot is free: job lm is at its minimum",
        "the file is in force, and the pool goes on by itself; see `ebbtide status`",
    ]


def test_a_freeze_by_a_person_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = status(frozen_by=FreezeCause.PERSON, frozen="counting (me)")
    (said,) = settled(monkeypatch, Link(frozen))
    assert said.endswith("; nothing moves before `ebbtide unfreeze`: counting (me)")


def test_an_hour_is_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROLL_S", 0.0)
    with pytest.raises(CommandFailed, match="not carried out within 0 s: still to come: chat: it has no replica yet"):
        settled(monkeypatch, Link(status()))
