"""Random number generators of a rank."""

import random

import numpy as np
import torch

from ebbtide_train.session.state import rng

CPU = torch.device("cpu")


def draw() -> list[float]:
    return [torch.rand(1).item(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]


def test_all_generators_go_on_where_they_were() -> None:
    rng.seed_rank(3, step=0, rank=1)
    draw()  # leaves a cached gauss value in Python's and numpy's generator
    packed = rng.capture(CPU)
    first = [draw(), draw()]
    draw()
    rng.restore(packed, CPU)
    assert [draw(), draw()] == first


def test_a_rank_is_seeded_by_where_it_stands_and_nothing_else() -> None:
    drawn = []
    for seed, step, rank in [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (1, 0, 0)]:
        rng.seed_rank(seed, step=step, rank=rank)
        drawn.append(tuple(draw()))
    assert drawn[0] == drawn[-1]
    assert len(set(drawn)) == 4


def test_packed_states_are_equally_long_whatever_is_cached() -> None:
    rng.seed_job(0)
    before = rng.capture(CPU)
    random.gauss(0, 1)
    np.random.randn()
    assert len(rng.capture(CPU)) == len(before)
