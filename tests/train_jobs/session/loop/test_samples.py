"""Which samples a step takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide_train.session.loop.samples import micro_batches, permute, permute_all, sample_ids, share
from tests.examples import examples


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 97, 1000])
def test_each_epoch_is_a_permutation(length: int) -> None:
    for key in (0, 1, 12345):
        assert sorted(permute(index, length=length, key=key) for index in range(length)) == list(range(length))


def test_epochs_and_seeds_differ_and_steps_cross_epochs() -> None:
    stream = [sample for step in range(20) for sample in sample_ids(step, seed=5, length=40, global_batch=6)]
    first, second = stream[:40], stream[40:80]
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second != list(range(40))
    other = [sample for step in range(20) for sample in sample_ids(step, seed=6, length=40, global_batch=6)]
    assert stream != other


def test_the_order_never_changes_between_versions() -> None:
    """A job's data order is part of its checkpoint: these numbers must stay."""
    assert sample_ids(0, seed=0, length=97, global_batch=6) == [33, 38, 47, 57, 94, 10]


@given(st.integers(1, 2**40), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 100))
@settings(max_examples=examples(50), deadline=None)
def test_whole_arrays_are_permuted_as_one_by_one(length: int, key: int, first: int, count: int) -> None:
    indexes = [(first + n) % length for n in range(count)]
    expected = [permute(index, length=length, key=key) for index in indexes]
    assert permute_all(indexes, length=length, key=key) == expected


@given(st.integers(0, 50), st.integers(1, 90), st.integers(1, 200), st.integers(1, 9))
@settings(max_examples=examples(50), deadline=None)
def test_a_rank_reckons_its_own_share_only(step: int, length: int, global_batch: int, world: int) -> None:
    everyone = sample_ids(step, seed=3, length=length, global_batch=global_batch)
    for rank in range(world):
        mine = sample_ids(step, seed=3, length=length, global_batch=global_batch, rank=rank, world=world)
        assert mine == share(everyone, rank=rank, world=world)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 12])
def test_shares_are_contiguous_and_differ_by_at_most_one(world: int) -> None:
    ids = list(range(100, 112))
    shares = [share(ids, rank=rank, world=world) for rank in range(world)]
    assert [sample for part in shares for sample in part] == ids
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_micro_batches_are_few_and_even() -> None:
    assert micro_batches(list(range(7)), at_most=3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert micro_batches([4, 5], at_most=64) == [[4, 5]]


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        sample_ids(0, seed=0, length=0, global_batch=4)
