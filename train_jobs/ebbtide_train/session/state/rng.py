"""Every random number generator of a rank, packed into one byte tensor; no pickle.

Covered: torch on CPU and on this rank's GPU, Python's ``random``, numpy's global generator. Not covered: generators
that the author made; register their state with ``session.track``.
"""

import random
import struct

import numpy as np
import torch

_HEAD = struct.Struct("<qq?d?d")  # bytes of torch CPU, of torch CUDA; Python's and numpy's cached gauss value
_PYTHON_WORDS = 625  # random.getstate(): 624 words of the Mersenne twister and its position
_NUMPY_WORDS = 625  # the same, for numpy's global generator


def capture(device: torch.device) -> torch.Tensor:
    """The state of all generators as uint8 on the CPU; equally long on all ranks of a gang."""
    cpu = torch.get_rng_state().numpy().tobytes()
    cuda = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    _, python_words, python_gauss = random.getstate()
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    head = _HEAD.pack(
        len(cpu),
        len(cuda),
        python_gauss is not None,
        python_gauss or 0.0,
        bool(state["has_gauss"]),
        float(state["gauss"]),
    )
    words = np.array([*python_words, *state["state"]["key"], state["state"]["pos"]], dtype="<u4").tobytes()
    return torch.frombuffer(bytearray(head + cpu + cuda + words), dtype=torch.uint8).clone()


def restore(packed: torch.Tensor, device: torch.device) -> None:
    """Set all generators to what `capture` saw."""
    raw = packed.numpy().tobytes()
    cpu_len, cuda_len, has_python, python_gauss, has_numpy, numpy_gauss = _HEAD.unpack_from(raw)
    at = _HEAD.size
    torch.set_rng_state(torch.frombuffer(bytearray(raw[at : at + cpu_len]), dtype=torch.uint8).clone())
    at += cpu_len
    if device.type == "cuda" and cuda_len:
        cuda = torch.frombuffer(bytearray(raw[at : at + cuda_len]), dtype=torch.uint8).clone()
        torch.cuda.set_rng_state(cuda, device)
    at += cuda_len
    words = np.frombuffer(raw[at:], dtype="<u4")
    assert len(words) == _PYTHON_WORDS + _NUMPY_WORDS, "not a packed RNG state"
    python_words = tuple(int(word) for word in words[:_PYTHON_WORDS])
    random.setstate((3, python_words, python_gauss if has_python else None))
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": words[_PYTHON_WORDS:-1], "pos": int(words[-1])},
            "has_gauss": int(has_numpy),
            "gauss": numpy_gauss,
        }
    )


def seed_job(seed: int) -> None:
    """Seed every rank alike: before the model is made, so that all ranks make the same one."""
    _seed_all(_sequence(seed))


def seed_rank(seed: int, *, step: int, rank: int) -> None:
    """Seed one rank by a fixed function of where it stands: at step 0, and whenever the number of workers changed."""
    _seed_all(_sequence(seed, step, rank))


def _sequence(*entropy: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([value & 0xFFFFFFFFFFFFFFFF for value in entropy])


def _seed_all(sequence: np.random.SeedSequence) -> None:
    words = [int(word) for word in sequence.generate_state(4, np.uint64)]
    torch.manual_seed(words[0] >> 1)  # torch takes signed 64 bits; seeds all GPUs too, lazily
    random.seed(words[1])
    np.random.seed(words[2] & 0xFFFFFFFF)
