"""Copies in host memory: right, of one moment, and of the same memory each time."""

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ebbtide.storage.checkpoints.manager.host_staging import HostCopies
from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.arena_pool import Arenas
from tests.builders.checkpoints import every_type, odd_tensors
from tests.platform.storage.checkpoints.runs import bits, same


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_copy_is_the_state_and_does_not_change_with_it() -> None:
    weight, array = torch.randn(10, 3), np.arange(5)
    state: dict[str, Any] = {
        "model": {"w": weight, "list": [torch.ones(2), (torch.zeros(()), 3)]},
        "numpy": array,
        "seen": Counter("aab"),
        "plain": {"lr": 0.1, "names": ["a"], "none": None, "bytes": bytearray(b"x")},
    }
    before = {"w": weight.clone(), "array": array.copy()}
    staged = HostCopies(Arenas()).stage(state)
    assert same(staged.state["model"]["list"], state["model"]["list"])
    weight.zero_()
    array[:] = 0
    state["plain"]["names"].append("b")
    state["plain"]["bytes"].extend(b"y")
    state["seen"]["c"] = 1
    assert same(staged.state["model"]["w"], before["w"]) and same(staged.state["numpy"], before["array"])
    assert staged.state["plain"] == {"lr": 0.1, "names": ["a"], "none": None, "bytes": bytearray(b"x")}
    assert staged.state["plain"]["names"] == ["a"] and staged.state["seen"] == Counter("aab")


def test_all_types_shapes_and_strides_are_copied_to_the_bit() -> None:
    state = {**every_type(), **odd_tensors()}
    staged = HostCopies(Arenas()).stage(state)
    for name, tensor in state.items():
        found = staged.state[name]
        assert (found.dtype, found.shape, found.is_contiguous()) == (tensor.dtype, tensor.shape, True)
        assert not found.requires_grad
        assert found.tolist() == tensor.tolist() or bits(found) == bits(tensor), name


def test_tensors_that_are_one_memory_stay_one() -> None:
    weight = torch.randn(1000)
    staged = HostCopies(Arenas()).stage(
        {"a": weight, "b": weight, "c": weight[:], "d": weight[1:], "e": weight.clone()}
    )
    pointers = [staged.state[name].data_ptr() for name in "abcde"]
    assert pointers[0] == pointers[1] == pointers[2] and len(set(pointers)) == 3
    assert staged.size_bytes == 3 * 4032


def test_the_same_memory_with_another_sign_is_another_tensor() -> None:
    z = torch.tensor([1 + 2j, 3 + 4j])
    state = HostCopies(Arenas()).stage({"up": z.imag, "down": z.conj().imag}).state
    assert (state["up"].tolist(), state["down"].tolist()) == ([2, 4], [-2, -4])


def test_the_second_copy_allocates_nothing() -> None:
    arenas = Arenas()
    copies = HostCopies(arenas)
    state = {str(number): torch.randn(1 << 19) for number in range(8)}  # 16 MiB
    copies.stage(state).release()
    held, before = arenas.total_bytes, resident_bytes()
    for _ in range(5):
        staged = copies.stage(state)
        assert arenas.free_bytes == 0 and same(staged.state["3"], state["3"])
        staged.release()
        del staged
        assert arenas.free_bytes == held
    gc.collect()
    assert arenas.total_bytes == held and resident_bytes() - before < 8 << 20


def test_memory_in_use_is_not_given_to_the_next_copy() -> None:
    arenas = Arenas()
    first = HostCopies(arenas).stage({"x": torch.full((1000,), 1.0)})
    second = HostCopies(arenas).stage({"x": torch.full((1000,), 2.0)})
    assert first.state["x"][0] == 1 and second.state["x"][0] == 2
    kept = first.state["x"]
    first.release()
    third = HostCopies(arenas).stage({"x": torch.full((1000,), 3.0)})
    assert kept[0] == 1 and third.state["x"][0] == 3, "a view that somebody kept is left alone"


def test_beyond_the_limit_there_is_no_copy() -> None:
    copies = HostCopies(Arenas(limit_bytes=4 << 20))
    with pytest.raises(MemoryError):
        copies.stage({"x": torch.zeros(2 << 20)})
    assert copies.stage({"x": torch.zeros(1 << 19)}).size_bytes == 2 << 20


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
def test_what_cannot_be_copied_is_refused_by_name(tensor: torch.Tensor) -> None:
    with pytest.raises(Refused, match=r"'model\.x' cannot be copied"):
        HostCopies(Arenas()).stage({"model": {"x": tensor}})


def test_objects_that_have_a_state_give_it() -> None:
    model = torch.nn.Linear(2, 2)
    staged = HostCopies(Arenas()).stage({"model": model, "step": 3})
    assert same(dict(staged.state["model"]), dict(model.state_dict()))


def test_nothing_needs_no_memory() -> None:
    arenas = Arenas()
    assert HostCopies(arenas).stage({"e": torch.empty(0), "n": 1}).size_bytes == 0
    assert arenas.total_bytes == 0
