"""Who waits and why, kept in pieces, is what it would be one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.events import Decision
from ebbtide_autoscaler.core.jobs.pending_groups import PendingGroup
from ebbtide_autoscaler.core.plan.pending_reasons import PendingReasons, SharedReason
from tests.examples import examples

NAMES = tuple("abcdefgh")
PAIRS = st.tuples(st.sampled_from(NAMES), st.sampled_from(["waits", "held"]))


@st.composite
def alike(draw: st.DrawFn) -> SharedReason:
    begin, end = sorted(draw(st.tuples(st.integers(0, 8), st.integers(0, 8))))
    return SharedReason(NAMES, begin, end, "too few", draw(st.frozensets(st.sampled_from(NAMES))))


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(st.lists(PAIRS | alike(), max_size=6), PAIRS)
def test_pieces_are_as_pairs_one_by_one(pieces: list[tuple[str, str] | SharedReason], other: tuple[str, str]) -> None:
    plain: list[tuple[str, str]] = []
    for one in pieces:
        if isinstance(one, SharedReason):
            plain += [(name, one.why) for name in one.names[one.begin : one.end] if name not in one.others]
        else:
            plain.append(one)
    found = PendingReasons(pieces)
    assert list(found) == list(found) == plain, "twice: it is no iterator"
    assert len(found) == len(plain) and bool(found) == bool(plain)
    assert dict(found) == dict(plain)
    assert (other in found) == (other in plain)
    assert (
        found == tuple(plain)
        and found == PendingReasons(plain)
        and Decision(waits=found) == Decision(waits=tuple(plain))
    )
    assert found != (*plain, other) and found != "waits"


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(-1, 10), st.data())
def test_who_starves_next_is_the_first_one_that_waits_as_long(
    since: list[int], before: int, data: st.DataObject
) -> None:
    line = PendingGroup((), NAMES[: len(since)], tuple(map(float, since)))  # type: ignore[arg-type]
    at = data.draw(st.integers(0, len(since)))
    they = [n for n in range(at, len(since)) if since[n] <= before]
    assert line.next_starving(at, float(before)) == (they[0] if they else len(since))
