"""States survive as JSON and tensors, to the bit and to the type."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.state.plain_state import pack, unpack
from ebbtide.storage.errors import Refused
from tests.examples import examples
from tests.platform.storage.checkpoints.runs import same

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=8)
    | st.sampled_from([torch.float32, torch.float8_e4m3fn, torch.Size([2, 3]), torch.Size([])])
)
LEAVES = (
    SCALARS
    | st.builds(torch.tensor, st.lists(st.floats(width=32), max_size=3))
    | st.builds(np.array, st.lists(st.integers(-9, 9), max_size=3))
)
KEYS = st.text(max_size=4) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def there_and_back(state: object) -> tuple[object, Mapping[str, torch.Tensor]]:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(state, "", tensors), allow_nan=False)
    return unpack(json.loads(text), tensors), tensors


@settings(deadline=None, max_examples=examples(300))
@given(STATES)
def test_a_state_comes_back_as_it_was(state: object) -> None:
    assert same(there_and_back(state)[0], state)


def test_tensors_are_named_by_their_place() -> None:
    state = {"model": {"w": torch.zeros(2)}, "list": [1, (torch.ones(1),)], 7: torch.zeros(0)}
    assert set(there_and_back(state)[1]) == {"model.w", "list.1.0", "7"}


@pytest.mark.proves("tensors of one name stay two")
def test_two_tensors_that_would_have_one_name_stay_two() -> None:
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a.b~2": torch.full((1,), 2.0)}
    found, tensors = there_and_back(state)
    assert same(found, state) and len(tensors) == 3


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 1e308, 0.1])
def test_numbers_are_exact(number: float) -> None:
    assert repr(there_and_back({"x": number})[0]) == repr({"x": number})


def test_generators_of_numpy_and_python_come_back() -> None:
    import random

    state = {"numpy": np.random.RandomState(3).get_state(), "python": random.Random(4).getstate()}
    assert same(there_and_back(state)[0], state)


def test_counters_come_back_as_counters() -> None:
    found, _ = there_and_back({"seen": Counter({3: 2, 10: 1})})
    assert isinstance(found, dict) and type(found["seen"]) is Counter and found["seen"] == {3: 2, 10: 1}


class Pair(NamedTuple):
    """A tuple with names, which would come back without."""

    a: int
    b: int


class Custom:
    """Something of an author's."""


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Custom(), "Custom"),
        ({1, 2}, "set"),
        (Pair(1, 2), "Pair"),
        (np.array(["x"], dtype=object), "array of object"),
        (1j, "complex"),
        (bytearray(b"x"), "bytearray"),
        (torch.complex128, "complex128"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(value: object, what: str) -> None:
    with pytest.raises(Refused, match=rf"deep\.1\.x is .*{what}"):
        pack({"deep": [0, {"x": value}]}, "", {})


@pytest.mark.proves("a state that holds itself is refused")
def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["self"] = state
    with pytest.raises(Refused, match="holds itself"):
        pack(state, "", {})


@pytest.mark.parametrize(
    "packed",
    [
        {"$tensor": "nobody"},
        {"$tensor": 3},
        {"$new": []},
        {"$tuple": "x"},
        {"$float": "x"},
        {"$bytes": "?"},
        {"$dtype": "F7"},
        {"$size": ["x"]},
        {"$pairs": [[1]]},
        {"$pairs": [[[], 1]]},
        {"$counter": [[1, 2, 3]]},
    ],
)
def test_rubbish_is_refused(packed: Any) -> None:
    with pytest.raises(Refused):
        unpack({"a": [packed]}, {})
