"""What stays: never less than the last good one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention, judge
from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound, Start, lineage
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from tests.platform.storage.checkpoints.runs import at


def stays(*epochs: EpochFound, keep: Retention, epoch: int = 9, sound: str | None = None, held: str = "") -> list[str]:
    judged = judge(
        epochs,
        keep,
        epoch=epoch,
        sound=at(sound) if sound else None,
        held=[at(held)] if held else [],
    )
    assert all(one.why for one in judged)
    return [str(one.id) for one in judged if one.stays]


ONE = EpochFound(1, frozenset(range(10, 100, 10)))


@pytest.mark.proves("the newest few checkpoints stay")
def test_the_newest_few_and_every_so_many_steps_stay() -> None:
    assert stays(ONE, keep=Retention(2)) == ["e1/step-90", "e1/step-80"]
    assert stays(ONE, keep=Retention(1, keep_every=40)) == ["e1/step-90", "e1/step-80", "e1/step-40"]
    assert stays(keep=Retention()) == []


@pytest.mark.proves("a checkpoint that is read stays")
def test_one_that_is_read_or_the_newest_that_opens_stays() -> None:
    assert stays(ONE, keep=Retention(1), sound="e1/step-70") == ["e1/step-90", "e1/step-70"]
    assert stays(ONE, keep=Retention(1), held="e1/step-20") == ["e1/step-90", "e1/step-20"]


def test_what_a_replaced_gang_left_beside_the_line_goes() -> None:
    went_on = EpochFound(2, frozenset({35}), Start(at("e1/step-30")))
    assert stays(ONE, went_on, keep=Retention(2)) == ["e2/step-35", "e1/step-30"]
    assert stays(ONE, went_on, keep=Retention(2), held="e1/step-90") == ["e2/step-35", "e1/step-90", "e1/step-30"]


@pytest.mark.proves("a gang that was replaced removes no checkpoint")
def test_a_gang_that_was_replaced_removes_nothing() -> None:
    later = EpochFound(10)
    assert len(stays(ONE, later, keep=Retention(1), epoch=9)) == 9


@pytest.mark.parametrize(("last", "every"), [(0, None), (-1, None), (1, 0)])
@pytest.mark.proves("a retention that keeps nothing is refused")
def test_a_retention_that_keeps_nothing_is_refused(last: int, every: int | None) -> None:
    with pytest.raises(ValueError, match="last good"):
        Retention(last, every)


EPOCHS = st.dictionaries(st.integers(0, 5), st.frozensets(st.integers(0, 30), max_size=6), max_size=5).flatmap(
    lambda steps: st.builds(
        lambda origins: [
            EpochFound(
                epoch,
                found,
                None
                if origins.get(epoch) is None or not any(other < epoch for other in steps)
                else Start(CheckpointId(min(steps), origins[epoch])),
            )
            for epoch, found in sorted(steps.items())
        ],
        st.dictionaries(st.integers(0, 5), st.integers(0, 30)),
    )
)


@settings(deadline=None)
@given(EPOCHS, st.integers(1, 4), st.none() | st.integers(1, 10), st.integers(0, 6))
def test_the_newest_always_stays_and_nothing_is_judged_twice(
    epochs: list[EpochFound], last: int, every: int | None, own: int
) -> None:
    judged = judge(epochs, Retention(last, every), epoch=own, sound=None)
    assert [one.id for one in judged] == sorted({one.id for one in judged}, reverse=True)
    there = {CheckpointId(one.epoch, step) for one in epochs for step in one.steps}
    assert {one.id for one in judged} == there
    kept = {one.id for one in judged if one.stays}
    line = [one for one in lineage(epochs) if one in there]
    assert set(line[:last]) <= kept
    after = [
        EpochFound(one.epoch, frozenset(c.step for c in kept if c.epoch == one.epoch), one.start) for one in epochs
    ]
    assert lineage(after)[:1] == lineage(epochs)[:1], "what counts is the same afterwards"
