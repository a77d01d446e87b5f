"""A parked state in host memory: all of it comes back, and nothing that was tampered with is taken for one."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.snapshot.errors import NotEvictable, PoolTooSmall
from ebbtide.snapshot.eviction.host_memory import OwnMemory
from ebbtide.snapshot.eviction.tensor_eviction import copy_out, plan, tensors_in
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.errors import ParkedStateUnusable
from ebbtide_train.session.parking.host_checkpoint import Owner, Portable, read_note, read_state
from tests.examples import examples

OWNER = Owner("job", "ledger", 7)
REF = Ref(step=5, epoch=9, world=2, seed=3, global_batch=6, dataset_len=97)
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Dense, of some strides: transposed, every second element, a single one, none at all."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    tensor = (torch.arange(2 * int(np.prod(shape)) + 3) % 7).to(draw(st.sampled_from(DTYPES)))
    made = tensor[1 : 1 + int(np.prod(shape))].reshape(shape)
    how = draw(st.integers(0, 3))
    if how == 1:
        return made.transpose(0, -1) if made.dim() > 1 else tensor[::2]
    if how == 2 and made.is_complex():
        return made.conj()
    return made.clone() if how == 3 else made


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
STATES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.one_of(PLAIN, tensors()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=3), inner)
        ),
        max_leaves=6,
    ),
    max_size=4,
)


def parked(state: dict[str, Any], evicted: list[torch.Tensor]) -> tuple[dict[str, object], bytes, torch.Tensor]:
    """Park it as the session does; the state where it lies, the note, and the payload."""
    portable, away = Portable(state, OWNER, REF), plan([(str(i), tensor) for i, tensor in enumerate(evicted)])
    region = OwnMemory().lend(portable.size_bytes(away))
    copy_out(away, region)
    there, note = portable.put(away, region.bytes)
    noted = read_note(note)
    assert noted.body_at + noted.body_bytes <= portable.size_bytes(away), "what was asked for is enough"
    return there, note, region.bytes


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.proves("tensors that are not evicted are copied behind the storages")
@settings(max_examples=examples(60), deadline=None)
@given(STATES, st.randoms(use_true_random=False))
def test_a_state_comes_back_from_host_memory(state: dict[str, Any], chance: Any) -> None:
    """Whichever of its tensors were evicted; the others are copied behind them."""
    evicted = [tensor for _, tensor in tensors_in("", state) if chance.random() < 0.5]
    there, note, payload = parked(state, evicted)
    assert same(there, state)
    noted = read_note(note)
    assert (noted.owner, noted.ref) == (OWNER, REF)
    assert same(read_state(noted, payload), state)


def test_what_json_does_not_know_comes_back_too() -> None:
    state: dict[Any, Any] = {"n": np.arange(3), "c": Counter("aab"), 3: {"x": (1, float("inf"))}}
    _, note, payload = parked(state, [])
    found: Any = read_state(read_note(note), payload)
    assert found["n"].tolist() == [0, 1, 2] and type(found["c"]) is Counter and found[3] == state[3]


def test_many_small_tensors_have_room_wherever_they_lie() -> None:
    """Where is known when the memory is lent: an offset may take more digits than was thought."""
    parked({str(number): torch.zeros(1) for number in range(200)}, [])


@pytest.mark.proves("what is not evicted has room of its own in host memory")
def test_room_is_asked_for_what_is_not_evicted_and_for_nothing_twice() -> None:
    evicted, other = torch.zeros(1 << 16), torch.zeros(1 << 10)
    size_bytes = Portable({"a": evicted, "b": other}, OWNER, REF).size_bytes(plan([("a", evicted)]))
    both = evicted.nbytes + other.nbytes
    assert both < size_bytes < both + other.nbytes


def test_a_tensor_that_no_checkpoint_holds_is_refused_before_anything_is_copied() -> None:
    with pytest.raises(NotEvictable, match="stop and restart"):
        Portable({"s": torch.zeros(3).to_sparse()}, OWNER, REF)
    with pytest.raises(NotEvictable, match=r"x\.g is a Generator"):
        Portable({"x": {"g": torch.Generator()}}, OWNER, REF)


def test_memory_that_is_too_short_is_told() -> None:
    state = {"a": torch.zeros(1 << 16)}
    with pytest.raises(PoolTooSmall, match="65536 bytes"):
        Portable(state, OWNER, REF).put(plan([]), torch.empty(65536, dtype=torch.uint8))
    with pytest.raises(PoolTooSmall):
        Portable(state, OWNER, REF).put(plan([]), torch.empty(4 << 16, dtype=torch.uint8))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_damaged_description_is_never_taken_for_a_state(data: st.DataObject) -> None:
    _, note, payload = parked({"a": torch.arange(10), "b": [1, 2]}, [])
    noted = read_note(note)
    at = data.draw(st.integers(noted.body_at, noted.body_at + noted.body_bytes - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ParkedStateUnusable):
        read_state(noted, payload)


@pytest.mark.proves(
    "a damaged description of a parked state is never used", "a note that describes no parked state is told"
)
def test_a_description_that_reads_well_is_not_taken_for_one_that_was_noted() -> None:
    _, note, payload = parked({"said": "one"}, [])
    noted = read_note(note)
    body = payload[noted.body_at :].numpy().tobytes()
    payload[noted.body_at + body.index(b"one")] = ord("O")
    with pytest.raises(ParkedStateUnusable, match="damaged"):
        read_state(noted, payload)


@settings(max_examples=examples(100), deadline=None)
@given(st.one_of(st.binary(max_size=50), st.recursive(PLAIN.filter(lambda v: type(v) is not bytes), st.lists)))
def test_a_note_of_something_else_is_told_apart(given: object) -> None:
    note = given if isinstance(given, bytes) else json.dumps(given).encode()
    with pytest.raises(ParkedStateUnusable):
        read_note(note)


@pytest.mark.proves("what another version has parked is told")
def test_what_another_version_has_parked_is_told() -> None:
    _, note, _ = parked({}, [])
    with pytest.raises(ParkedStateUnusable, match="another version"):
        read_note(json.dumps({**json.loads(note), "schema": 2}).encode())


@pytest.mark.proves("numbers of a parked state's note are not negative", "numbers of a parked state's note are whole")
@pytest.mark.parametrize(
    "wrong", [{"body_at": -1}, {"body_bytes": 1.5}, {"lease_epoch": "7"}, {"body_at": True}, {"checkpoint": {}}]
)
def test_a_note_that_makes_no_sense_is_told(wrong: dict[str, object]) -> None:
    _, note, _ = parked({}, [])
    with pytest.raises(ParkedStateUnusable, match="describes no state"):
        read_note(json.dumps({**json.loads(note), **wrong}).encode())


def test_a_description_of_something_else_is_no_state() -> None:
    with pytest.raises(ParkedStateUnusable, match="no state of a session"):
        read_described([1, 2], {})


@pytest.mark.proves("a description of a parked state that makes no sense is told")
@pytest.mark.parametrize(
    "tensor",
    [
        ["F32", [4], [1], 1 << 20],
        ["F32", [4], [1], 2],
        ["F32", [1 << 40], [1], 0],
        ["F32", [4, 4], [1], 0],
        ["F32", [4], [-1], 64],
        ["F32", [-4], [1], 0],
        ["F99", [4], [1], 0],
        ["F32", [4], [1]],
    ],
)
def test_a_tensor_that_does_not_lie_in_the_memory_is_not_read(tensor: list[Any]) -> None:
    """The hash is right: another version may have made it."""
    with pytest.raises(ParkedStateUnusable):
        read_described({"a": {"$tensor": "a"}}, {"a": tensor})


def read_described(tree: object, tensors: dict[str, list[Any]]) -> dict[str, object]:
    """What is read where somebody has described this."""
    body = json.dumps({"tree": tree, "tensors": tensors}).encode()
    payload = torch.zeros(4096, dtype=torch.uint8)
    payload[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
    _, note, _ = parked({}, [])
    fields = {**json.loads(note), "body_at": 0, "body_bytes": len(body), "body_hash": xxhash.xxh3_128_hexdigest(body)}
    return read_state(read_note(json.dumps(fields).encode()), payload)
