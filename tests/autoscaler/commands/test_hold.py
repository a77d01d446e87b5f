"""`ebbtide park` and `resume`: exit codes, one result, progress on stderr, and refusals that change nothing."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_autoscaler.commands import calls, hold
from ebbtide_autoscaler.commands.calls import saved
from ebbtide_autoscaler.commands.hold import park, resume
from ebbtide_autoscaler.lifecycle import progress
from tests.builders.commands import FakeLink, a_status, no_sleep, run

ANN = {"by": "ann", "reason": "new data", "since_at_s": 5.0, "off_node": False}


def standing(state: str, held: dict[str, Any] | None, *, free: bool = True, frozen: str = "") -> dict[str, Any]:
    found = a_status(state, occupant=None if free else "train")
    found["jobs"][0] |= {"held": held, "waits": "parked: 1 of its slots taken by chat/0", "slots": ["n:0"]}
    found["arbiter"]["frozen"] = frozen
    return found


class Link(FakeLink):
    """An arbiter that also answers what it was asked."""

    answer: Any = None

    def call(self, method: str, *args: object, timeout_s: float = 2.0) -> Any:
        found = super().call(method, *args, timeout_s=timeout_s)
        return self.answer if self.asked and found is None and method.endswith("_job") else found


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    found = Link()
    monkeypatch.setattr(calls, "ArbiterLink", lambda: found)
    monkeypatch.setattr(hold, "join_pool", lambda pool: ClusterRecord("p", "h:1", "", "", "/s", "/f"))
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.setattr(hold, "until_done", no_sleep(progress.until_done))
    found.answer = {"changed": True, "held": ANN}
    return found


@pytest.mark.proves("the command that parks a job waits until its slots are free")
def test_a_park_waits_until_the_job_is_aside_and_its_slots_are_free(link: Link) -> None:
    states = [("running", False), ("parking", False), ("parked", False), ("parked", False), ("parked", True)]
    link.states = [standing(state, ANN, free=free) for state, free in states]
    done = run(park, "train", "--reason", "new data")
    assert len(link.states) == 1, "it looked until nobody was on its slots any more"
    assert (done.exit_code, link.asked) == (0, [("park_job", "train", "new data", "me", False)])
    assert done.stderr.splitlines() == [
        "job train is running: it steps aside at its next safe point",
        "job train is parking",
        "job train is parked, and on its way off its slots",
    ]
    assert done.stdout == "job train is parked in place after step 9, saved up to step 9\n"


def test_a_park_by_a_restart_says_so_and_json_says_all(link: Link) -> None:
    link.states = [standing("stopping", ANN, free=False), standing("waiting", ANN)]
    done = run(park, "train", "--json", "--wait")
    assert link.asked == [("park_job", "train", "no reason given", "me", False)]
    shown = ANN | {"since_at": "1970-01-01T00:00:05.000Z"}
    facts = {"job": "train", "already": False, "held": shown, "state": "waiting", "step": 9, "durable_step": 9}
    assert (done.exit_code, json.loads(done.stdout)) == (0, facts)
    link.states = [standing("stopping", ANN, free=False), standing("waiting", ANN)]
    assert run(park, "train").stdout == "job train is aside without a process of its own, at step 9\n"


def test_a_park_into_files_waits_until_nothing_is_left_in_memory(link: Link) -> None:
    off = ANN | {"off_node": True}
    link.answer = {"changed": True, "held": off}
    link.states = [standing("parked", off), standing("stopping", off, free=False), standing("waiting", off)]
    done = run(park, "train", "--image")
    assert (done.exit_code, link.asked) == (0, [("park_job", "train", "no reason given", "me", True)])
    assert done.stderr.splitlines() == [
        "job train is parked in place, and goes into files now",
        "job train is stopping",
    ]
    assert done.stdout == "job train is aside without a process of its own, at step 9\n"


def test_a_resume_waits_until_the_job_trains_and_says_what_for(link: Link) -> None:
    link.answer = {"changed": True, "held": None}
    link.states = [standing("parked", None), None, standing("resuming", None), standing("running", None)]
    done = run(resume, "train")
    assert (done.exit_code, link.asked) == (0, [("resume_job", "train", "me")])
    assert done.stderr.splitlines() == [
        "job train: parked: 1 of its slots taken by chat/0",
        "the arbiter does not answer; everything that runs goes on",
        "job train is resuming",
    ]
    assert done.stdout == "job train runs on 1 slot, 9 steps done\n"


def test_asking_twice_is_no_error_and_says_so(link: Link) -> None:
    link.answer, link.states = {"changed": False, "held": ANN}, [standing("parked", ANN)]
    done = run(park, "train", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["already"] is True
    told = "job train is parked in place after step 9, saved up to step 9 (held already by ann: new data)\n"
    assert run(park, "train").stdout == told
    link.answer, link.states = {"changed": False, "held": None}, [standing("running", None)]
    done = run(resume, "train")
    told = "job train runs on 1 slot, 9 steps done (no person holds it: it was free to go on already)\n"
    assert (done.exit_code, done.stdout) == (0, told)


def test_a_frozen_pool_takes_the_wish_and_says_that_nothing_moves(link: Link) -> None:
    link.states = [standing("running", ANN, free=False, frozen="night (bob)")]
    done = run(park, "train", "--no-wait")
    said = "job train is running: it steps aside at its next safe point; nothing moves: night (bob)\n"
    assert (done.exit_code, done.stdout) == (0, said)
    late = run(park, "train", "--timeout", "0")
    assert (
        late.exit_code == 1
        and "is not aside yet; given up waiting for it after 0 s" in late.stderr
        and "nothing moves: night" in late.stderr
    )
    link.answer, link.states = {"changed": True, "held": None}, [standing("resuming", None, frozen="night (bob)")]
    assert run(resume, "train", "--no-wait").stdout.endswith("; nothing moves: night (bob)\n")


@pytest.mark.parametrize("unsaid", [None, {"arbiter": {"frozen": ""}}])
def test_what_nobody_tells_of_is_taken_in_all_the_same(link: Link, unsaid: Any) -> None:
    link.states = [unsaid]
    done = run(park, "train", "--no-wait", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (0, None)
    assert run(park, "train", "--no-wait").stdout == "job train: taken in; see `ebbtide status`\n"


def ended(held: dict[str, Any] | None) -> dict[str, Any]:
    return standing("ended", held)


@pytest.mark.parametrize(
    ("command", "states", "why"),
    [
        (park, [standing("running", ANN, free=False), ended(None)], "is over and was not parked: cancelled: by me"),
        (park, [standing("running", ANN, free=False), standing("running", None)], "was released meanwhile"),
        (resume, [standing("parked", None), ended(None)], "is over and did not go on: cancelled: by me"),
        (resume, [standing("parked", None), standing("parked", ANN)], "is held again"),
    ],
)
def test_what_comes_between_is_a_failure_that_says_what(link: Link, command: Any, states: list[Any], why: str) -> None:
    link.states = states
    done = run(command, "train", "--timeout", "5")
    assert (done.exit_code, done.stdout) == (1, "") and why in done.stderr


@pytest.mark.parametrize("command", [park, resume])
def test_a_refusal_is_bad_input_and_a_silent_arbiter_a_failure(link: Link, command: Any) -> None:
    link.refusal = "the pool knows no job train"
    refused: Result = run(command, "train")
    assert (refused.exit_code, refused.stdout) == (2, "") and "knows no job" in refused.stderr
    link.dead = True
    silent = run(command, "train")
    assert silent.exit_code == 1 and "does not answer: nothing was changed" in silent.stderr and link.asked == []
    assert CliRunner().invoke(command, []).exit_code == 2


@pytest.mark.parametrize(
    ("state", "step", "durable", "words"),
    [
        ("parked", 9, 9, "saved up to step 9"),
        ("parked", 9, 0, "not saved yet: a crash now would take it back to step 0"),
        ("parked", 9, 7, "saved up to step 7: a crash now would take it back to step 7"),
        ("ended", 9, 0, "not saved: submitted again it begins at step 0"),
        ("ended", 9, 7, "saved up to step 7: submitted again it begins at step 7"),
        ("ended", 0, 0, "saved up to step 0"),
    ],
)
def test_what_is_saved_is_told_with_what_that_means(state: str, step: int, durable: int, words: str) -> None:
    assert saved({"state": state, "step": step, "durable_step": durable}) == words
