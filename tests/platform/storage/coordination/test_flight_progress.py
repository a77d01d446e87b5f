"""What the file of an attempt tells: a table of everything that can lie there."""

from typing import Any

import pytest

from ebbtide.storage.coordination.flight_progress import TOLD, Progress, as_seen, progress_of
from ebbtide.storage.coordination.flight_states import Seen, Standing
from ebbtide.storage.leases.lease_file import LeaseFile, Record
from ebbtide.storage.leases.liveness import Sighting


def attempt(released: bool, **note: Any) -> Sighting:
    return Sighting(LeaseFile("key", 4), Record("t", "node 2", 60.0, released=released, note=note).encode(), 0.0)


ENDS = [
    ({"outcome": "done"}, Seen(4, Standing.DONE, what="attempt 4 by node 2 has finished")),
    (
        {"outcome": "refused", "kind": "Refused", "error": "a pickle"},
        Seen(4, Standing.REFUSED, what="a pickle (found by attempt 4 by node 2)"),
    ),
    (
        {"outcome": "refused", "kind": "KindOfALaterVersion", "error": "odd"},
        Seen(4, Standing.FAILED, 1, "attempt 4 by node 2 failed: odd"),
    ),
    (
        {"outcome": "failed", "error": "EIO", "failures": 3},
        Seen(4, Standing.FAILED, 3, "attempt 4 by node 2 failed: EIO"),
    ),
    (
        {"outcome": "failed", "error": "EIO", "failures": "three"},
        Seen(4, Standing.FAILED, 1, "attempt 4 by node 2 failed: EIO"),
    ),
    ({}, Seen(4, Standing.LEFT, what="attempt 4 by node 2 left it")),
    ({"outcome": "an outcome of a later version"}, Seen(4, Standing.LEFT, what="attempt 4 by node 2 left it")),
]


@pytest.mark.parametrize(("note", "seen"), ENDS, ids=[str(seen.standing) for _, seen in ENDS])
def test_an_attempt_that_has_ended_tells_how(note: dict[str, Any], seen: Seen) -> None:
    assert as_seen(attempt(True, **note), dead=False) == seen
    assert progress_of(attempt(True, **note)) is None


@pytest.mark.parametrize("kind", TOLD.values())
def test_a_told_error_is_made_again_of_its_text(kind: type[Exception]) -> None:
    assert str(kind("a text")) == "a text"


def test_an_attempt_at_work_tells_how_far_it_is_and_is_dead_when_it_is_silent() -> None:
    seen = attempt(False, phase="copying", done_bytes=3, total_bytes=12)
    assert progress_of(seen) == Progress("node 2", 4, "copying", 3, 12)
    assert as_seen(seen, dead=False) == Seen(4, Standing.LIVING, what="attempt 4 by node 2: copying 25 %")
    assert as_seen(seen, dead=True).standing is Standing.DEAD


def test_progress_that_makes_no_sense_is_none() -> None:
    assert progress_of(attempt(False, phase=None, done_bytes="much", total_bytes=None)) == Progress(
        "node 2", 4, "None", 0, 0
    )
    assert str(progress_of(attempt(False))) == "attempt 4 by node 2: begun"


def test_an_attempt_that_never_said_who_it_is_lives_until_it_is_silent_for_too_long() -> None:
    empty = Sighting(LeaseFile("key", 4), b"", 0.0)
    what = "attempt 4 has begun, by somebody who has not said who"
    assert as_seen(empty, dead=False) == Seen(4, Standing.LIVING, what=what)
    assert as_seen(empty, dead=True) == Seen(4, Standing.DEAD, what=what)
