"""Single flight with real processes that are killed and paused, and with one's own errors."""

import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.storage.coordination.single_flight import Leading, Terms, Waiting, file_name, run_single_flight
from ebbtide.storage.errors import NoRoom, NotPublished, Refused, StorageError, Superseded, TransferFailed, WaitTimeout
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import Holding, System, claim
from ebbtide_testing.cluster.virtual_clock import VirtualClock
from tests.hunts import spread
from tests.platform.storage.lease_process import PACE
from tests.platform.storage.played import Player, until

PATIENT = Pace(beat_s=0.02, stale_after_s=60.0, answer_s=30.0)
TERMS = Terms("node 1", deadline_s=100.0, pace=PATIENT)
SEED = int(os.environ.get("EBBTIDE_SEED", "1"))


def nothing() -> None:
    return None


def another(directory: Path, attempt: int = 1) -> Holding:
    """Somebody else who is at "a/b"."""
    holding = claim(directory, file_name("a/b"), attempt, who="node 2", pace=PATIENT)
    assert holding is not None
    return holding


def test_what_is_there_is_returned_and_nothing_is_written(tmp_path: Path) -> None:
    def work(leading: Leading) -> str:
        raise AssertionError("it is there")

    assert run_single_flight(tmp_path / "flights", "a/b", work=work, look=lambda: "it", terms=TERMS) == "it"
    assert not (tmp_path / "flights").exists()


def test_the_first_does_the_work_and_the_next_finds_it_done(tmp_path: Path) -> None:
    made: list[int] = []

    def work(leading: Leading) -> str:
        leading.report("copying", 1, 2)
        leading.check()
        leading.confirm()
        made.append(leading.attempt)
        return "it"

    for expected in ([1], [1]):
        look: Callable[[], str | None] = lambda: "it" if made else None  # noqa: E731
        assert run_single_flight(tmp_path / "flights", "a/b", work=work, look=look, terms=TERMS) == "it"
        assert made == expected
    made.clear()
    assert run_single_flight(tmp_path / "flights", "a/b", work=work, look=lambda: None, terms=TERMS) == "it"
    assert made == [2], "what has gone again is made again"


def test_keys_are_any_text_and_do_not_meet(tmp_path: Path) -> None:
    keys = ["a/b", "a_b", "../../etc", "", ".", "ä" * 300, "a\nb", "a\0b"]
    for key in keys:
        assert (
            run_single_flight(
                tmp_path / "flights", key, work=lambda leading: leading.attempt, look=nothing, terms=TERMS
            )
            == 1
        )
    assert len(os.listdir(tmp_path / "flights")) == len(keys)
    assert os.listdir(tmp_path) == ["flights"]


@pytest.mark.parametrize("error", [Refused("a pickle"), NoRoom("full"), NotPublished("no such model")])
def test_an_error_that_all_would_meet_is_told_to_whoever_waits_and_not_to_whoever_comes_later(
    tmp_path: Path, error: StorageError
) -> None:
    def refuse(leading: Leading) -> str:
        raise error

    def wait(waiting: Waiting) -> None:
        """While we wait for another, that one fails."""
        assert waiting.progress is not None and waiting.progress.who == "node 2"
        other.release({"outcome": "refused", "kind": type(error).__name__, "error": str(error)})

    with pytest.raises(type(error)):
        run_single_flight(tmp_path, "a/b", work=refuse, look=nothing, terms=TERMS)
    other = another(tmp_path, 2)
    with pytest.raises(type(error), match=rf"{error} \(found by attempt 2 by node 2\)"):
        run_single_flight(tmp_path, "a/b", work=refuse, look=nothing, terms=TERMS, on_wait=wait)
    assert run_single_flight(tmp_path, "a/b", work=lambda leading: leading.attempt, look=nothing, terms=TERMS) == 3


def test_a_leaders_progress_is_seen_by_whoever_waits(tmp_path: Path) -> None:
    other = another(tmp_path)
    seen: list[str] = []
    done: list[str] = []

    def wait(waiting: Waiting) -> None:
        seen.append(waiting.why)
        if waiting.progress and waiting.progress.done_bytes == 3:
            assert waiting.progress.total_bytes == 4
            done.append("it")
            other.release({"outcome": "done"})

    other.say({"phase": "copying", "done_bytes": 3, "total_bytes": 4})
    look: Callable[[], str | None] = lambda: done[0] if done else None  # noqa: E731
    assert run_single_flight(tmp_path, "a/b", work=lambda leading: "mine", look=look, terms=TERMS, on_wait=wait) == "it"
    assert "attempt 1 by node 2: copying 75 %" in seen


def test_an_error_that_may_pass_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    waits: list[str] = []
    clock = VirtualClock()
    terms = replace(TERMS, system=System(observer_clock_s=lambda: clock.now_s, sleep=clock.run_for))

    def work(leading: Leading) -> int:
        if leading.attempt < 3:
            raise TransferFailed("read", "source", errno=5)
        return leading.attempt

    began_s = clock.now_s
    found = run_single_flight(
        tmp_path, "a/b", work=work, look=nothing, terms=terms, on_wait=lambda waiting: waits.append(waiting.why)
    )
    assert found == 3
    assert clock.now_s - began_s == pytest.approx(2 * 2.0 + 2 * 4.0, abs=0.1), "twice as long as others would wait"
    assert "attempt 1 by node 1 failed: cannot read source: Input/output error (EIO); trying again soon" in waits


def test_ones_own_error_is_raised_when_it_was_tried_often_enough_and_anothers_told(tmp_path: Path) -> None:
    def work(leading: Leading) -> int:
        raise TransferFailed("read", "source", errno=5)

    def wait(waiting: Waiting) -> None:
        other.release({"outcome": "failed", "error": "no luck"})

    terms = replace(TERMS, tries=1)
    with pytest.raises(TransferFailed, match="cannot read source"):
        run_single_flight(tmp_path, "a/b", work=work, look=nothing, terms=terms)
    other = another(tmp_path, 2)
    with pytest.raises(WaitTimeout, match=r"1 attempts have come to nothing; the last: attempt 2 by node 2 .*no luck"):
        run_single_flight(tmp_path, "a/b", work=work, look=nothing, terms=terms, on_wait=wait)


def test_a_bug_in_the_work_is_raised_at_once_and_frees_the_key(tmp_path: Path) -> None:
    def work(leading: Leading) -> int:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        run_single_flight(tmp_path, "a/b", work=work, look=nothing, terms=TERMS)
    assert run_single_flight(tmp_path, "a/b", work=lambda leading: leading.attempt, look=nothing, terms=TERMS) == 2


def test_a_superseded_of_something_else_is_not_mistaken_for_ones_own(tmp_path: Path) -> None:
    def work(leading: Leading) -> int:
        raise Superseded("another lease")

    with pytest.raises(Superseded, match="another lease"):
        run_single_flight(tmp_path, "a/b", work=work, look=nothing, terms=TERMS)


def test_a_living_leader_is_waited_for_until_the_deadline_and_named(tmp_path: Path) -> None:
    with another(tmp_path):
        terms = Terms("node 1", deadline_s=0.5, pace=PATIENT)
        with pytest.raises(WaitTimeout, match=r"gave up waiting for a/b after .*: attempt 1 by node 2: begun") as told:
            run_single_flight(tmp_path, "a/b", work=lambda leading: 2, look=nothing, terms=terms)
        assert told.value.after_s >= 0.5


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("not a directory")
    with pytest.raises((TransferFailed, WaitTimeout)):
        run_single_flight(
            tmp_path / "flights", "a", work=lambda leading: 1, look=nothing, terms=Terms("n", 0.3, pace=PATIENT)
        )


def test_a_look_that_hangs_ends_at_the_deadline(tmp_path: Path) -> None:
    hasty = Terms("n", deadline_s=0.3, pace=Pace(0.02, 60.0, answer_s=0.3))
    with pytest.raises(TransferFailed, match="cannot look for https://hub/a/b"):
        run_single_flight(
            tmp_path, "https://hub/a/b", work=lambda leading: 1, look=lambda: time.sleep(5.0), terms=hasty
        )


# --- real processes ------------------------------------------------------------------------------------------------


def test_six_ask_at_once_and_one_works(tmp_path: Path) -> None:
    with ExitStack() as stack:
        players = [stack.enter_context(Player("fly", tmp_path, "key", 5, 0.2, "make")) for _ in range(6)]
        whats = {player.wait_for("has", "error").get("what") for player in players}
        events = [event for player in players for event in player.events()]
        assert events.count("begun") == 1 and events.count("published") == 1
        assert whats == {(tmp_path / "key.made").read_text()}
        assert all(player.end() == 0 for player in players)


def test_six_ask_at_once_and_one_meets_the_error_of_the_input(tmp_path: Path) -> None:
    with ExitStack() as stack:
        players = [stack.enter_context(Player("fly", tmp_path, "key", 10, 1.0, "refuse")) for _ in range(6)]
        errors = [player.wait_for("has", "error") for player in players]
        assert {error["kind"] for error in errors} == {"Refused"}
        assert sum("found by attempt 1" in error["text"] for error in errors) == 5
        assert [event for player in players for event in player.events()].count("begun") == 1


@pytest.mark.parametrize("seed", spread(range(SEED, SEED + 3)))
def test_leaders_killed_at_random_moments_are_followed_until_it_is_made_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with ExitStack() as stack:
        players = [stack.enter_context(Player("fly", tmp_path, "key", 8, 0.1, "make")) for _ in range(6)]
        living = list(players)
        for _ in range(2):
            until(lambda: any("has" in one.events() for one in living) or bool(leaders(living)))
            time.sleep(rng.uniform(0.0, 1.0))
            if found := leaders(living):
                found[0].kill()
                living.remove(found[0])
        whats = {player.wait_for("has", "error").get("what") for player in living}
        assert whats == {(tmp_path / "key.made").read_text()}, f"seed {seed}"
        assert all(player.end() == 0 for player in living)


def leaders(players: list[Player]) -> list[Player]:
    """Who has begun and not ended."""
    return [one for one in players if "begun" in one.events() and "has" not in one.events()]


def test_a_leader_that_is_paused_and_replaced_does_not_publish_and_takes_the_others_result(tmp_path: Path) -> None:
    with Player("fly", tmp_path, "key", 10, 0.3, "make") as first:
        first.wait_for("begun")
        first.stop()
        with Player("fly", tmp_path, "key", 3, 0.1, "make") as second:
            assert second.wait_for("published")["attempt"] == 2
            first.go_on()
            assert first.wait_for("has")["what"] == f"process {second.pid}"
            assert "published" not in first.events()
            assert first.end() == 0 and second.end() == 0


def test_what_was_made_by_one_that_died_before_it_said_so_is_not_made_again(tmp_path: Path) -> None:
    with Player("fly", tmp_path, "key", 100, 0.1, "make") as first:
        first.wait_for("begun")
        with Player("fly", tmp_path, "key", 100, 0.1, "make") as second:
            second.wait_for("waits")
            first.kill()
            (tmp_path / "key.made").write_text("by the dead")
            assert second.wait_for("has")["what"] == "by the dead"
            assert "begun" not in second.events()


def test_beats_go_on_while_the_work_does(tmp_path: Path) -> None:
    def work(leading: Leading) -> int:
        time.sleep(PACE.stale_after_s + 1.0)
        leading.confirm()
        return leading.attempt

    assert run_single_flight(tmp_path, "a", work=work, look=nothing, terms=Terms("n", 100.0, pace=PACE)) == 1
