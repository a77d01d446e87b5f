"""A parked state as a portable checkpoint in host memory: tensors where the eviction put them, and all else beside.

::

    payload:  evicted storages | tensors that are not evicted | the body, as JSON
    note:     whose it is, and where the body lies, with its hash

Tensors are named by where their bytes lie, so nothing is copied twice. What is not evicted (a generator's state that
``state_dict`` makes anew, the random numbers of all ranks) is copied behind the storages. The rest is the JSON of
``ebbtide.storage.checkpoints``; there is no pickle. What is spilled is read from here, and so is what a later gang
takes over: both are the same checkpoint.

Not guaranteed: that the bytes of the tensors are as they were; whoever keeps the memory has hashes of them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import xxhash

from ebbtide.snapshot.errors import NotEvictable, PoolTooSmall
from ebbtide.snapshot.eviction.tensor_eviction import Plan
from ebbtide.storage.checkpoints.manager.checkpoint_manager import parts_of
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide.storage.checkpoints.state.plain_state import unpack
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.errors import CheckpointMismatch, ParkedStateUnusable

SCHEMA = 1
_ALIGN_BYTES = 64  # as `evict` does: every dtype's size divides it
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_FAR = 10**15  # bytes: an offset that takes more digits than any real one


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose state it is. Lease epochs grow within one ledger."""

    job: str
    ledger: str
    lease_epoch: int  # with which the gang began


@dataclass(frozen=True, slots=True)
class Noted:
    """What a note says; cheap to read, also of memory that is not mapped here."""

    owner: Owner
    ref: Ref  # what kind of checkpoint it would be
    body_at: int
    body_bytes: int
    body_hash: str


class Portable:
    """A state that is about to be parked, as of the moment it was made."""

    def __init__(self, state: Mapping[str, object], owner: Owner, ref: Ref) -> None:
        """Nothing is copied yet, so the tensors must not change before `put`.

        Raises:
            NotEvictable: the state holds something that no checkpoint can hold.
        """
        try:
            self._tree, shards = parts_of(state)
        except Refused as error:
            raise NotEvictable(f"{error}; or stop and restart this job instead") from error
        self._tensors = {shard.name: shard.tensor for shard in shards}
        self._owner, self._ref = owner, ref

    def size_bytes(self, plan: Plan) -> int:
        """An upper bound of what it takes in a payload, with the storages of ``plan``."""
        body = self._body({name: _described(tensor, _FAR) for name, tensor in self._tensors.items()})
        # guard: what is not evicted has room of its own in host memory
        tails = (_aligned(t.numel() * t.itemsize) for t in self._tensors.values() if not plan.holds(t))
        return plan.size_bytes + sum(tails) + _aligned(len(body))

    def put(self, plan: Plan, payload: torch.Tensor) -> tuple[dict[str, object], bytes]:
        """Write all that is missing behind the storages of ``plan``, which ``payload`` holds already.

        Returns:
            The state with all its tensors in ``payload``, and the note.

        Raises:
            PoolTooSmall: it does not fit.
        """
        at, placed = plan.size_bytes, dict[str, torch.Tensor]()
        for name, tensor in self._tensors.items():
            try:
                placed[name] = plan.view(tensor.detach(), payload)
            except KeyError:  # guard: tensors that are not evicted are copied behind the storages
                placed[name] = _copied(tensor.detach(), payload, at)
                at += _aligned(tensor.numel() * tensor.itemsize)
        start = payload.data_ptr()
        described = {
            name: _described(tensor, tensor.data_ptr() - start if tensor.numel() else 0)
            for name, tensor in placed.items()
        }
        body = self._body(described)
        _copied(torch.frombuffer(bytearray(body), dtype=torch.uint8), payload, at)
        state = unpack(self._tree, placed)
        assert isinstance(state, dict)
        return state, _note(Noted(self._owner, self._ref, at, len(body), xxhash.xxh3_128_hexdigest(body)))

    def _body(self, described: Mapping[str, Json]) -> bytes:
        return json.dumps({"tree": self._tree, "tensors": described}, separators=(",", ":")).encode()


def read_note(note: bytes) -> Noted:
    """What a note says.

    Raises:
        ParkedStateUnusable: it is none of a portable state.
    """
    try:
        fields = json.loads(note)
        schema = fields["schema"]
        ref = Ref.from_note(_id_of(fields["checkpoint"]), fields["checkpoint"])
        owner = Owner(str(fields["job"]), str(fields["ledger"]), _whole(fields["lease_epoch"]))
        noted = Noted(owner, ref, _whole(fields["body_at"]), _whole(fields["body_bytes"]), str(fields["body_hash"]))
    # guard: a note that describes no parked state is told
    except (ValueError, KeyError, TypeError, Refused, CheckpointMismatch, RecursionError) as error:
        raise ParkedStateUnusable(f"what is noted beside it describes no state of a job: {error}") from error
    if schema != SCHEMA:  # guard: what another version has parked is told
        raise ParkedStateUnusable(f"it was parked by another version of ebbtide (schema {schema}, here {SCHEMA})")
    return noted


def read_state(noted: Noted, payload: torch.Tensor) -> dict[str, object]:
    """The state, its tensors over ``payload``, which must stay as it is for as long as they are used.

    Raises:
        ParkedStateUnusable: what lies there is not what was noted.
    """
    body = payload[noted.body_at : noted.body_at + noted.body_bytes].numpy().tobytes()
    # guard: a damaged description of a parked state is never used
    if len(body) != noted.body_bytes or xxhash.xxh3_128_hexdigest(body) != noted.body_hash:
        raise ParkedStateUnusable("the description of its tensors is damaged")
    try:
        found = json.loads(body)
        tensors = {name: _tensor(payload, *described) for name, described in found["tensors"].items()}
        state = unpack(found["tree"], tensors)
    # guard: a description of a parked state that makes no sense is told
    except (ValueError, KeyError, TypeError, RuntimeError, Refused, RecursionError) as error:
        raise ParkedStateUnusable(f"the description of its tensors makes no sense: {error}") from error
    if not isinstance(state, dict):
        raise ParkedStateUnusable("it is no state of a session")
    return state


def _note(noted: Noted) -> bytes:
    fields = {
        "schema": SCHEMA,
        **asdict(noted.owner),
        "checkpoint": {"step": noted.ref.step, "epoch": noted.ref.epoch, **noted.ref.note()},
        "body_at": noted.body_at,
        "body_bytes": noted.body_bytes,
        "body_hash": noted.body_hash,
    }
    return json.dumps(fields).encode()


def _id_of(fields: Mapping[str, Any]) -> CheckpointId:
    return CheckpointId(fields["epoch"], fields["step"])


def _whole(value: object) -> int:
    if (
        type(value) is not int  # guard: numbers of a parked state's note are whole
        or value < 0  # guard: numbers of a parked state's note are not negative
    ):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _described(tensor: torch.Tensor, at: int) -> Json:
    return [DTYPE_NAMES[tensor.dtype], list(tensor.shape), list(tensor.stride()), at]


def _tensor(payload: torch.Tensor, dtype: str, shape: list[int], stride: list[int], at: int) -> torch.Tensor:
    kind = _DTYPES[dtype]
    sizes, steps = [_whole(size) for size in shape], [_whole(step) for step in stride]
    if len(sizes) != len(steps):
        raise ValueError(f"shape {shape} and stride {stride} do not fit together")
    last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) if all(sizes) else -1
    end = _whole(at) + (last + 1) * kind.itemsize
    if end > payload.numel() or at % kind.itemsize:
        raise ValueError(f"a tensor from byte {at} to {end} does not lie in {payload.numel()} bytes")
    flat = payload[at:end].view(kind)
    return flat.as_strided(sizes, steps, flat.storage_offset())


def _copied(tensor: torch.Tensor, payload: torch.Tensor, at: int) -> torch.Tensor:
    end = at + tensor.numel() * tensor.itemsize
    if end > payload.numel():
        raise PoolTooSmall(f"the host memory has {payload.numel()} bytes, the state needs more than {end}")
    inside = payload[at:end].view(tensor.dtype).view(tensor.shape)
    return inside.copy_(tensor)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
