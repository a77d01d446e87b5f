"""What people ask of a running pool: exit codes, one result, progress on stderr, and refusals that change nothing."""

import json
from typing import Any

import pytest

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide_autoscaler.cluster.node_names import Node
from ebbtide_autoscaler.commands import calls, operate
from ebbtide_autoscaler.commands.operate import cancel, drain, freeze, left_on, undrain, unfreeze
from ebbtide_autoscaler.lifecycle import progress
from tests.builders.commands import FakeLink, M, N, a_status, no_sleep, run


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    found = FakeLink()
    record = ClusterRecord("p", "h:1", "", "", "/s", "/f")
    monkeypatch.setattr(calls, "ArbiterLink", lambda: found)
    monkeypatch.setattr(operate, "join_pool", lambda pool: record)
    monkeypatch.setattr(operate, "cluster_nodes", lambda: (Node(N, "box"), Node(M, "crate")))
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.setattr(operate, "until_done", no_sleep(progress.until_done))
    return found


def test_a_freeze_carries_its_reason_and_who_asked(link: FakeLink) -> None:
    done = run(freeze, "--reason", "counting", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"frozen": "counting (me)", "already": False})
    assert run(unfreeze).exit_code == 0
    assert link.asked == [("freeze", "counting (me)"), ("unfreeze",)]


@pytest.mark.parametrize("arguments", [(freeze,), (unfreeze,), (drain, "box"), (undrain, "box"), (cancel, "train")])
def test_a_refusal_is_bad_input_and_a_silent_arbiter_a_failure(link: FakeLink, arguments: tuple[Any, ...]) -> None:
    link.refusal = "not journaled within 5 s: the ledger hangs; nothing was changed"
    refused = run(*arguments)
    assert refused.exit_code == 2 and "nothing was changed" in refused.stderr and refused.stdout == ""
    link.dead = True
    silent = run(*arguments)
    assert silent.exit_code in (1, 2) and "Traceback" not in silent.stderr
    assert link.asked == []


def test_a_drain_says_what_is_left_until_nothing_is(link: FakeLink) -> None:
    link.states = [a_status(), a_status(), a_status("stopping"), None, a_status("waiting", occupant=None)]
    done = run(drain, "box", "--reason", "new disk")
    assert done.exit_code == 0 and link.asked == [("drain_node", N, "new disk (me)")]
    assert done.stderr.splitlines() == [
        "node 01234567 (box): train is running",
        "node 01234567 (box): train is stopping",
        "the arbiter does not answer; everything that runs goes on",
    ]
    assert done.stdout == "node 01234567 (box) is empty; `ebbtide undrain` gives it back\n"


def test_the_only_node_needs_a_yes(link: FakeLink) -> None:
    link.states = [a_status(nodes=(N,))]
    done = run(drain, N[:6], "--no-wait")
    assert done.exit_code == 2 and "only node" in done.stderr and link.asked == []
    assert run(drain, N[:6], "--no-wait", "--yes").exit_code == 0
    assert [asked[0] for asked in link.asked] == ["drain_node"]


def test_a_node_that_nobody_knows_is_bad_input_and_lists_those_there_are(link: FakeLink) -> None:
    done = run(drain, "shed")
    assert done.exit_code == 2 and "01234567 (box), fedcba98 (crate)" in done.stderr and link.asked == []


def test_a_drain_that_takes_too_long_fails_and_says_where_it_stands(link: FakeLink) -> None:
    done = run(drain, "box", "--timeout", "0")
    assert done.exit_code == 1 and "goes on draining" in done.stderr and "train is running" in done.stderr


def test_a_cancelled_job_is_waited_for_until_its_slots_are_free(link: FakeLink) -> None:
    link.states = [a_status(), a_status("stopping"), a_status("ended"), a_status("ended", occupant=None)]
    done = run(cancel, "train", "--json")
    assert done.exit_code == 0 and link.asked == [("cancel_job", "train", "cancelled by me")]
    assert json.loads(done.stdout)["outcome"] == "cancelled: by me"
    assert done.stderr.splitlines()[-1] == "job train has ended; 1 slot is being proven free"


def test_a_cancel_that_does_not_wait_promises_an_end_or_tells_of_it(link: FakeLink) -> None:
    begun = run(cancel, "train", "--no-wait")
    assert (begun.exit_code, begun.stdout) == (0, "job train will end at its next safe point\n")
    link.states = [a_status("ended", occupant=None)]  # of a job that was lost
    over = run(cancel, "train", "--no-wait")
    assert (over.exit_code, over.stdout) == (0, "job train is over: cancelled: by me; step 9, saved up to step 9\n")
    assert json.loads(run(cancel, "train", "--no-wait", "--json").stdout)["state"] == "ended"
    link.states = [a_status("ended")]
    assert "; 1 slot is being proven free\n" in run(cancel, "train", "--no-wait").stdout
    for unsaid in (None, {"arbiter": {"frozen": ""}}):  # nobody answers; an arbiter that has not looked around yet
        link.states = [unsaid]
        unknown = run(cancel, "train", "--no-wait", "--json")
        assert json.loads(unknown.stdout) == {"job": "train", "state": "cancelling", "already": False}


def test_parked_gangs_count_as_being_on_their_node() -> None:
    status = a_status(occupant=None)
    status["slots"][0]["parked"] = ["night"]
    assert left_on(status, N) == ["night"] and left_on(status, M) == []
