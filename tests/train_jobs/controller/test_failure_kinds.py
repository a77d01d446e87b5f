"""On whom a failure lies: real exceptions, as torch, Ray and Python raise them."""

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import ray.exceptions
import torch
import torch.distributed as dist

from ebbtide.agent.errors import AgentError
from ebbtide.storage.errors import TransferFailed
from ebbtide_train.controller.failure_kinds import MACHINE, Kind, kind_of
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch, GangBroken, SessionMisuse
from ebbtide_train.worker.rank_failure import as_told


def kind(error: BaseException) -> Kind:
    return kind_of(as_told(error).chain)


def missing_module() -> None:
    import no_such_module_anywhere  # type: ignore[import-not-found] # noqa: F401


class MyImportError(ImportError):
    """An author's own; its constructor takes what no pickle gives it."""

    def __init__(self, name: str, *, why: str) -> None:
        super().__init__(f"{name}: {why}")


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'numpyy'"),
        ImportError("libcudart.so.12: cannot open shared object file: No such file or directory"),
        MyImportError("x", why="y"),
        SyntaxError("invalid syntax"),
        IndentationError("unexpected indent"),
        SessionMisuse("prepare() was called twice"),
    ],
)
def test_what_no_machine_can_change_is_never_tried_again(error: BaseException) -> None:
    assert kind(error) is Kind.NEVER


@pytest.mark.parametrize(
    "error",
    [
        KeyError("stepz"),
        TypeError("train() takes 0 positional arguments but 1 was given"),
        ValueError("the dataset is empty"),
        RuntimeError("the author's own mistake"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x32 and 16x10)"),
        AssertionError(),
        SystemExit(1),
        MemoryError(),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/train.bin"),
        FileNotFoundError("[Errno 2] from a worker of a DataLoader, without its number"),
        PermissionError(errno.EACCES, "Permission denied", "/data"),
        OSError(errno.ENAMETOOLONG, "File name too long"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: device-side assert triggered"),
        CheckpointMismatch("seed is 1, the committed checkpoint was made with 2"),
    ],
)
def test_what_the_author_wrote_is_the_authors(error: BaseException) -> None:
    assert kind(error) is Kind.AUTHOR


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), Kind.IO),
        (OSError(errno.ENOSPC, "No space left on device"), Kind.IO),
        (OSError(errno.ESTALE, "Stale file handle"), Kind.IO),
        (OSError("a library's own, without a number"), Kind.IO),
        (RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly"), Kind.IO),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), Kind.PEER),
        (TimeoutError("timed out"), Kind.PEER),
        (dist.DistStoreError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."), Kind.PEER),
        (dist.DistNetworkError("The client socket has timed out after 60000ms"), Kind.PEER),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"), Kind.PEER),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer"), Kind.PEER),
        (RuntimeError("[0] is setting up NCCL communicator and retrieving ncclUniqueId from [0] timed out"), Kind.PEER),
        (ray.exceptions.ActorDiedError(), Kind.PEER),
        (ray.exceptions.WorkerCrashedError(), Kind.PEER),
        (ray.exceptions.NodeDiedError("gone"), Kind.PEER),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), Kind.DEVICE),
        (torch.AcceleratorError("a device's, in words that no table has"), Kind.DEVICE),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Kind.DEVICE),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), Kind.DEVICE),
        (CheckpointFailed("cannot commit step 3: No space left on device"), Kind.POOL),
        (GangBroken("rank 1 does not see it"), Kind.POOL),
        (AgentError("the slot is busy"), Kind.POOL),
    ],
)
def test_what_a_machine_does_is_a_machines(error: BaseException, expected: Kind) -> None:
    assert kind(error) is expected and expected in MACHINE


def raised(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 what it raises is what is looked at
        return error
    raise AssertionError("nothing was raised")


def test_what_was_explicitly_raised_from_a_machines_failure_is_one() -> None:
    def from_disk() -> None:
        try:
            raise TransferFailed("read", Path("/x"), errno=errno.EIO)
        except TransferFailed as error:
            raise CheckpointMismatch("this gang cannot begin") from error

    def from_config() -> None:
        try:
            missing_module()
        except ImportError as error:
            raise OSError(errno.EIO, "a machine's, whatever came before") from error

    def while_handling() -> None:
        try:
            raise OSError(errno.EIO, "Input/output error")
        except OSError:
            dict[str, int]()["steps"]

    assert kind(raised(from_disk)) is Kind.POOL
    assert kind(raised(from_config)) is Kind.IO
    assert kind(raised(while_handling)) is Kind.AUTHOR  # a mistake in the handler is the author's
    assert kind(raised(lambda: subprocess.run(["false"], check=True))) is Kind.AUTHOR
