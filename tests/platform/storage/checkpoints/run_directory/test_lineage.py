"""Which checkpoints count: by example, and against a world in which gangs are replaced, stand still and go on."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound, Start, lineage, newest, overtaken_by
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from tests.platform.storage.checkpoints.runs import at


def found(epoch: int, *steps: int, origin: str | None = "?") -> EpochFound:
    start = None if origin == "?" else Start(at(origin) if origin else None)
    return EpochFound(epoch, frozenset(steps), start)


def names(*epochs: EpochFound) -> list[str]:
    return list(map(str, lineage(epochs)))


def test_the_highest_epoch_comes_first_and_then_the_highest_step() -> None:
    assert names(found(1, 10, 20), found(2, 5), found(3)) == ["e2/step-5", "e1/step-20", "e1/step-10"]
    assert names() == [] and newest([]) is None
    assert newest([found(1), found(2)]) is None


@pytest.mark.proves("what a gang commits after the step from which the next one went on does not count")
def test_what_a_replaced_gang_commits_late_is_on_no_way() -> None:
    """1. e1 commits 10; 2. e2 goes on from it; 3. e1 wakes up and commits 20; 4. e2 commits 11."""
    assert names(found(1, 10), found(2, origin="e1/step-10")) == ["e1/step-10"]
    assert names(found(1, 10, 20), found(2, origin="e1/step-10")) == ["e1/step-10"]
    assert names(found(1, 10, 20), found(2, 11, origin="e1/step-10")) == ["e2/step-11", "e1/step-10"]


@pytest.mark.proves("a gang that began from nothing has nothing behind it")
def test_a_gang_that_went_back_takes_the_job_with_it() -> None:
    assert names(found(1, 5, 10), found(2, origin="e1/step-5")) == ["e1/step-5"]
    assert names(found(1, 5, 10), found(2, origin=None)) == []


@pytest.mark.proves("readers go over epochs that lead nowhere")
def test_epochs_between_that_lead_nowhere_are_left_out() -> None:
    line = names(found(1, 10), found(2, 99, origin="e1/step-10"), found(3, 12, origin="e1/step-10"))
    assert line == ["e3/step-12", "e1/step-10"]


@pytest.mark.proves("a missing origin is named", "a missing origin is named also if there is nothing below it")
def test_a_missing_origin_is_named_rather_than_passed_over_in_silence() -> None:
    assert names(found(1, 5), found(2, origin="e1/step-10")) == ["e1/step-10", "e1/step-5"]
    assert names(found(2, origin="e1/step-10")) == ["e1/step-10"]
    assert names(found(0, 10), found(2, origin="e1/step-10")) == ["e1/step-10", "e0/step-10"]
    assert names(found(1, 5), found(2, 12, origin="e1/step-10")) == ["e2/step-12", "e1/step-5"], "it is old by then"


def test_overtaken_means_a_later_epoch_has_a_directory() -> None:
    assert overtaken_by([found(1), found(4)], 3) == 4
    assert overtaken_by([found(1), found(3)], 3) is None
    assert overtaken_by([], 3) is None


@dataclass
class World:
    """Gangs that may be alive although they were replaced."""

    epochs: dict[int, tuple[CheckpointId | None, set[int]]] = field(default_factory=dict)
    position: dict[int, int] = field(default_factory=dict)

    def look(self) -> list[EpochFound]:
        return [EpochFound(epoch, frozenset(steps), Start(origin)) for epoch, (origin, steps) in self.epochs.items()]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "commit", "stale"]), st.integers(0, 5)), max_size=30))
def test_a_reader_sees_only_what_the_last_gang_went_on_from_or_did(moves: list[tuple[str, int]]) -> None:
    """A model that keeps what should be newest by itself, whatever older gangs do meanwhile."""
    world, should_be = World(), None
    for move, number in moves:
        last = max(world.epochs, default=0)
        if move == "begin":
            world.epochs[last + 1 + number] = (newest(world.look()), set())
            world.position[last + 1 + number] = 0 if should_be is None else should_be.step
        elif world.epochs:
            older = sorted(world.epochs)[:-1]
            epoch = last if move == "commit" or not older else older[number % len(older)]
            world.position[epoch] += 1 + number
            world.epochs[epoch][1].add(world.position[epoch])
            if epoch == last:
                should_be = CheckpointId(epoch, world.position[epoch])
        assert newest(world.look()) == should_be
        line = lineage(world.look())
        assert len(set(line)) == len(line) and line == sorted(line, reverse=True)
        assert [one.step for one in line] == sorted((one.step for one in line), reverse=True)
