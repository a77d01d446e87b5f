"""The leaves of a packed state are those into which PyTorch cuts the state."""

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict

from ebbtide.storage.checkpoints.state.plain_state import pack, unpack
from ebbtide.storage.checkpoints.state.state_tree import Leaf, leaves, nest, tensors_in
from ebbtide.storage.errors import Refused
from tests.examples import examples
from tests.platform.storage.checkpoints.runs import same

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=True) | st.text("ab.$", max_size=3)
KEYS = st.text("ab.$", min_size=1, max_size=3) | st.integers(0, 3)
STATES = st.recursive(
    SCALARS | st.builds(lambda size: torch.arange(float(size)), st.integers(0, 3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=examples(300))
@given(st.dictionaries(KEYS, STATES, max_size=4))
def test_leaves_are_those_of_pytorch(state: dict[Any, Any]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    tree = pack(state, "", tensors)
    try:
        flat, paths = flatten_state_dict(state)
    except ValueError:
        with pytest.raises(Refused, match="two parts"):
            leaves(tree)
        return
    found = leaves(tree)
    assert {name: leaf.path for name, leaf in found.items()} == paths
    for name, leaf in found.items():
        assert (leaf.tensor is not None) == isinstance(flat[name], torch.Tensor)
        assert same(unpack(leaf.value, tensors), flat[name])


@settings(deadline=None, max_examples=examples(300))
@given(st.dictionaries(KEYS, STATES, max_size=4))
def test_a_tree_of_leaves_is_what_pytorch_makes_of_them(state: dict[Any, Any]) -> None:
    try:
        flat, paths = flatten_state_dict(state)
        again = unflatten_state_dict(flat, paths)
    except (ValueError, TypeError, KeyError):  # some states PyTorch cannot put together again
        return
    tensors: dict[str, torch.Tensor] = {}
    parts = {paths[name]: pack(value, name, tensors) for name, value in flat.items()}
    try:
        tree = nest(parts)
    except Refused:
        return
    assert same(unpack(tree, tensors), again)


def test_tensors_of_an_object_are_found_wherever_they_are() -> None:
    state = {"a": (torch.zeros(1), [np.zeros(2)]), "b": [1, 2], "c": {"$x": torch.ones(3)}}
    tensors: dict[str, torch.Tensor] = {}
    tree = pack(state, "", tensors)
    assert set(tensors_in(tree)) == set(tensors) == {"a.0", "a.1.0", "c.$x"}
    found = leaves(tree)
    assert found["a"].tensor is None and set(tensors_in(found["a"].value)) == {"a.0", "a.1.0"}
    assert found["c.$x"] == Leaf(("c", "$x"), {"$tensor": "c.$x"})
    assert found["b"].value == [1, 2]


def test_subclasses_of_dicts_are_walked_into() -> None:
    tree = pack({"a": OrderedDict(x=1), "b": Counter("aab")}, "", {})
    assert {name: leaf.value for name, leaf in leaves(tree).items()} == {"a.x": 1, "b.a": 2, "b.b": 1}


@pytest.mark.parametrize("state", [[1, 2], 3, None, (1,)])
def test_a_state_that_is_no_dict_has_no_leaves(state: object) -> None:
    with pytest.raises(Refused, match="no dict"):
        leaves(pack(state, "", {}))


def test_paths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(Refused, match="within something"):
        nest({("a",): 1, ("a", "b"): 2})
    with pytest.raises(Refused, match="is there twice"):
        nest({("a", "b"): 2, ("a",): 1})
