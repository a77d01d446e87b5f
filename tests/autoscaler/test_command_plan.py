"""``ebbtide plan`` as people misuse it."""

from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner

from ebbtide_autoscaler.command_plan import AHEAD_MAX_S, plan


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
    assert 0.0 < option.type.convert(datetime.now().strftime("%H:%M"), option, None) <= AHEAD_MAX_S
