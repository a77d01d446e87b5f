"""``ebbtide plan`` as people misuse it."""

import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide_autoscaler.commands import plan as command_plan
from ebbtide_autoscaler.commands.plan import AHEAD_MAX_S, plan
from tests.examples import examples


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(plan, list(arguments))
    return found.exit_code, found.output


@pytest.mark.parametrize("arguments", [(), ("pool.yaml", "--at", "+1h")])
def test_it_takes_a_file_or_a_time(arguments: tuple[str, ...]) -> None:
    code, output = run(*arguments)
    assert code != 0 and "give a FILE" in output


@pytest.mark.parametrize("when", ["tomorrow", "25:00", "1h", "+1w", "+", "18:5"])
def test_what_is_no_time_is_refused_with_one_that_is(when: str) -> None:
    code, output = run("--at", when)
    assert code == 2 and "+30m" in output


def test_nobody_looks_further_than_a_day() -> None:
    code, output = run("--at", "+25h")
    assert code == 2 and "at most a day" in output


def test_times_are_from_now() -> None:
    [option] = [one for one in plan.params if one.name == "ahead_s"]
    assert option.type.convert("+1.5h", option, None) == 5400.0
    soon = (datetime.now() + timedelta(minutes=2)).strftime("%H:%M")
    assert 0.0 < option.type.convert(soon, option, None) <= 120.0
    assert 0.0 < option.type.convert(datetime.now().strftime("%H:%M"), option, None) <= AHEAD_MAX_S + 3600.0


SPRING_S, AUTUMN_S = 1_774_746_000, 1_792_890_000  # Berlin's clocks are set ahead, and back: 01:00 UTC each


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(300))
@given(st.sampled_from([SPRING_S, AUTUMN_S]), st.integers(-26 * 3600, 26 * 3600), st.integers(0, 24 * 60 - 1))
def test_a_time_of_day_is_when_clocks_show_it_next_also_when_they_are_set(
    set_s: int, before_s: int, minutes: int
) -> None:
    now_s = set_s - before_s
    asked = f"{minutes // 60:02}:{minutes % 60:02}"
    next_s = next(s for s in range(now_s - now_s % 60 + 60, now_s + 2 * 86_400, 60) if shown(s) == asked)
    [option] = [one for one in plan.params if one.name == "ahead_s"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_plan, "time", SimpleNamespace(time=lambda: float(now_s)))
        assert option.type.convert(asked, option, None) == next_s - now_s


def shown(second: int) -> str:
    return time.strftime("%H:%M", time.localtime(second))


def told(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> str:
    """What a person reads of such words of the arbiter."""
    row = {"endpoint": "chat", "known": True, "unheard_s": 0.0, "now": 2.0, "then": 3.5, "most": None, "error": None}
    row |= {"replicas": 1, "replicas_then": 1, "slots": 0}
    answer = {"at_s": 1e9, "endpoints": [row | one for one in rows], "free_slots": 0, "moves": []}

    class Link:
        def call(self, method: str, at_s: float, *, timeout_s: float) -> dict[str, Any]:
            return answer

    monkeypatch.setattr(command_plan, "ArbiterLink", Link)
    monkeypatch.setattr(command_plan, "join_pool", lambda pool: None)
    code, output = run("--at", "+1h")
    assert code == 0, output
    return output


def test_demand_that_nobody_knows_is_not_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"known": False, "unheard_s": 70.0, "now": None, "then": None}
    output = told(monkeypatch, silent, {"endpoint": "heard"})
    assert "chat: its demand is not known, for its gateways are silent; it keeps its replicas" in output
    assert "heard:" not in output and "demand is taken to stay as it is" in output
    [chat] = [line for line in output.splitlines() if line.startswith("chat ")]
    assert chat.split()[1:3] == ["-", "-"]
    assert "demand is taken to stay" not in told(monkeypatch, silent)


def test_demand_of_which_a_part_is_not_known_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    output = told(monkeypatch, {"unheard_s": 20.0})
    assert "chat: a gateway has been silent for 20 s, its part is not in these numbers; nothing is taken away" in output
    assert "chat:" not in told(monkeypatch, {})


def test_what_up_would_refuse_on_this_machine_is_refused_by_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    file = tmp_path / "pool.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"pool: {{name: planned, slots: 2, shared_dir: shared}}\ngateway: {{port: {port}}}\n")
        code, output = run(str(file))
    assert code == 2 and f"on this machine `ebbtide up {file}` would be refused" in output and str(port) in output
    file.write_text(
        "pool: {name: planned, slots: all, shared_dir: shared}\n"
        "endpoints: [{name: a, model: m:1, gpus_per_replica: 4096}]\n"
    )
    code, output = run(str(file))
    assert code == 2 and "endpoints[0].gpus_per_replica" in output and not (tmp_path / "shared").exists()
