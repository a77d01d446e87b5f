"""Which errors, raised while an engine's configuration is built, would be raised on every slot alike."""

import errno
import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, model_validator

from ebbtide_serve.engine.permanent_errors import PERMANENT, WRONG_PATH, is_permanent

TOO_LONG = """User-specified max_model_len (999999) is greater than the derived max_model_len \
(max_position_embeddings=2048 or model_max_length=None in model's config.json). To allow overriding this maximum, set \
the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. If the model uses absolute position encoding, positions exceeding \
derived_max_model_len will cause a CUDA array out-of-bounds error."""


class ModelConfig(BaseModel):
    """As vLLM's: it takes all arguments, and pydantic quotes them."""

    device: str = "cuda"

    @model_validator(mode="after")
    def _refuse(self) -> "ModelConfig":
        raise ValueError(TOO_LONG)


def raised(make: Callable[[], object]) -> BaseException:
    try:
        make()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it raises")


def of(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def during(error: BaseException, earlier: BaseException, *, hidden: bool = False) -> BaseException:
    error.__context__, error.__suppress_context__ = earlier, hidden
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError(TOO_LONG),
        raised(lambda: ModelConfig(device="cuda")),
        raised(lambda: TypeAdapter(int).validate_python("x")),
        raised(lambda: json.loads("{")),
        raised(lambda: b"\xff".decode()),
        TypeError("unexpected keyword argument 'x'"),
        KeyError("rope_type"),
        NotImplementedError("this model has no such mode"),
        ModuleNotFoundError("No module named 'flash'"),
        FileNotFoundError(errno.ENOENT, "No such file", "/m/config.json"),
        OSError("It looks like the config file at '/m/config.json' is not a valid JSON file."),
        of(ValueError("Invalid repository ID or local directory"), ValueError("no config file found")),
        during(OSError("not a valid JSON file"), raised(lambda: json.loads("{"))),
        during(ValueError("x"), ConnectionError("of something that was tried before"), hidden=True),
        ValueError("gpu_memory_utilization must be between 0 and 1"),
        of(StrictDataclassFieldValidationError("max_position_embeddings", TypeError("got str")), TypeError("got str")),
    ],
    ids=lambda error: f"{type(error).__name__}: {str(error)[:30]}",
)  # fmt: skip
def test_a_wrong_value_is_permanent(error: BaseException) -> None:
    assert is_permanent(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        TimeoutError("x"),
        ConnectionResetError("x"),
        OSError(errno.EIO, "Input/output error"),
        PermissionError(errno.EACCES, "Permission denied"),  # of another node's mount
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("We couldn't connect to 'https://huggingface.co' to load the files"),
        ImportError("libcuda.so.1: cannot open shared object file: No such file or directory"),
        ValueError("World size (2) is larger than the number of available GPUs (1) in this node."),
        ValueError("The quantization method fp8 is not supported for the current GPU. Minimum capability: 89."),
        ValueError("Sleep mode is not supported on current platform."),
        ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
        ValueError("Free memory on device (1.2/2.0 GiB) on startup is less than desired GPU memory utilization."),
        of(ValueError("Invalid repository ID or local directory"), ConnectionError("no route to host")),
        during(ValueError("cannot be read"), OSError(errno.ESTALE, "Stale file handle")),
        of(ValueError("a"), of(ValueError("b"), TimeoutError("c"))),
        RuntimeError("Failed to infer device type"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__}: {str(error)[:30]}",
)  # fmt: skip
def test_what_may_be_the_machines_is_not(error: BaseException) -> None:
    assert not is_permanent(error)


CAUSES = st.one_of(
    st.sampled_from([one for one in PERMANENT if one is not SyntaxError]).map(lambda kind: kind("x")),
    st.sampled_from(sorted(WRONG_PATH)).map(lambda number: OSError(number, "x")),
)


@given(st.lists(CAUSES, min_size=1, max_size=5), st.integers(0, 5), st.sampled_from([MemoryError, EOFError, OSError]))
def test_one_cause_that_is_the_machines_makes_the_whole_so(
    chain: list[BaseException], place: int, machine: type[BaseException]
) -> None:
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    assert is_permanent(chain[0])
    at = chain[place % len(chain)]
    at.__cause__ = machine(errno.EIO, "x")
    assert not is_permanent(chain[0])


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert is_permanent(first)
