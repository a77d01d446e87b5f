"""Nested state in two halves."""

import json
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from ebbtide_train.session.errors import CheckpointMismatch, SessionMisuse
from ebbtide_train.session.portable import pack, unpack


def test_state_of_optimizers_and_schedulers_comes_back_as_it_was() -> None:
    state = {
        "betas": (0.9, 0.999),
        "lr": 0.1 + 0.2,
        "milestones": Counter({30: 1, 80: 2}),
        "by_number": {0: torch.arange(3), 1: [None, True]},
        "$odd": {"inf": float("inf")},
        "ordered": OrderedDict(a=torch.ones(2)),
        "count": np.int64(7),
    }
    tensors: dict[str, torch.Tensor] = {}
    index = json.loads(json.dumps(pack(state, "state", tensors)))
    back = unpack(index, tensors)
    assert isinstance(back, dict)
    assert back["betas"] == (0.9, 0.999)
    assert back["lr"] == 0.1 + 0.2
    assert back["milestones"] == Counter({30: 1, 80: 2})
    assert torch.equal(back["by_number"][0], torch.arange(3))
    assert back["by_number"][1] == [None, True]
    assert back["$odd"] == {"inf": float("inf")}
    assert torch.equal(back["ordered"]["a"], torch.ones(2))
    assert back["count"] == 7


def test_what_is_neither_tensor_nor_plain_data_is_refused_by_name() -> None:
    with pytest.raises(SessionMisuse, match=r"state\.fn\.0 is a function"):
        pack({"fn": [test_what_is_neither_tensor_nor_plain_data_is_refused_by_name]}, "state", {})


def test_a_missing_tensor_or_an_unknown_tag_is_an_error() -> None:
    with pytest.raises(CheckpointMismatch, match=r"state\.x"):
        unpack({"$tensor": "state.x"}, {})
    with pytest.raises(CheckpointMismatch, match="newer format"):
        unpack({"$class": []}, {})
