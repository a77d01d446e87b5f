"""What else loading changes is seen, whatever it is; what only looks like a change is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.state_watch import filled_buffers, state_of
from tests.serve_apps.loading.small_model import SmallModel, checkpoint_tensors


class Watched(SmallModel):
    """With everything that may change."""

    flag: Any
    number: Any
    words: Any
    loose: Any
    nan: Any
    alias: Any
    thing: Any


def model() -> Watched:
    made = Watched()
    made.flag, made.number, made.words = False, 1.5, ["a", {"b": (1, torch.zeros(2))}]
    made.loose = torch.zeros(3)
    made.nan = float("nan")
    made.alias = made.qkv.weight.data[:4]
    made.norm.register_buffer("mean", torch.zeros(2))
    made.thing = object()
    return made


def change(act: Callable[[Watched], object]) -> tuple[str, ...]:
    watched = model()
    before = state_of(watched)
    act(watched)
    return filled_buffers(before, state_of(watched))


def test_a_load_that_fills_parameters_alone_changes_nothing_else() -> None:
    assert change(lambda one: one.load_weights(checkpoint_tensors().items())) == ()


def test_buffers_that_were_filled_are_named() -> None:
    assert change(lambda one: one.norm.mean.fill_(3)) == ("norm.mean",)
    assert change(lambda one: setattr(one.norm, "mean", torch.ones(2))) == ("norm.mean",)
    assert change(lambda one: (one.rope.zero_(), one.norm.mean.fill_(3))) == ("norm.mean", "rope")


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda one: setattr(one, "flag", True), "flag"),
        (lambda one: setattr(one, "number", 2.5), "number"),
        (lambda one: one.words.append("c"), "words"),
        (lambda one: one.words[1]["b"][1].fill_(1), "words"),
        (lambda one: one.loose.fill_(1), "loose"),
        (lambda one: setattr(one, "loose", torch.zeros(3, dtype=torch.float64)), "loose"),
        (lambda one: setattr(one, "more", 1), "more"),
        (lambda one: delattr(one, "flag"), "flag"),
        (lambda one: setattr(one, "norm", nn.Identity()), "norm"),
        (lambda one: setattr(one, "another", nn.Identity()), "another"),
        (lambda one: setattr(one.norm, "seen", True), "norm.seen"),
    ],
)
def test_any_other_change_is_named(act: Callable[[Watched], object], named: str) -> None:
    with pytest.raises(FlatUnusable, match=f"more of this model than its parameters: .*{named}"):
        change(act)


@pytest.mark.parametrize(
    "act", [lambda one: one.register_buffer("new", torch.zeros(1)), lambda one: delattr(one, "rope")]
)
def test_buffers_that_come_or_go_are_named(act: Callable[[Watched], object]) -> None:
    with pytest.raises(FlatUnusable, match=r"buffer (new|rope)"):
        change(act)
