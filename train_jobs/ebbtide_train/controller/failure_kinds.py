"""What kind of failure a rank's exception is: the one table by which a job is tried again or ended. Pure.

Retries are for machines. By type first, then, since torch raises bare ``RuntimeError`` for much that a machine does,
by the words of these; then by what it was explicitly raised from.
"""

import errno
import re
from enum import Enum

from ebbtide_train.worker.rank_failure import Raised


class Kind(Enum):
    """On whom a failure lies."""

    NEVER = "never"  # the same again whatever the machine does: a module that is not there, a loop that breaks a rule
    AUTHOR = "author"  # anything that is not known to be a machine's
    DEVICE = "device"
    IO = "io"
    POOL = "pool"  # raised by ebbtide about its own work: a checkpoint, a slot lock
    PEER = "peer"  # another rank is gone, or did not come: a consequence, unless all say so


MACHINE = frozenset({Kind.DEVICE, Kind.IO, Kind.POOL, Kind.PEER})

_TYPES: dict[str, Kind] = {
    "ImportError": Kind.NEVER,
    "SyntaxError": Kind.NEVER,
    "ebbtide_train.session.errors.SessionMisuse": Kind.NEVER,
    "ebbtide_train.session.errors.CheckpointMismatch": Kind.AUTHOR,  # but see its cause: a disk that does not answer
    "ebbtide.storage.errors.Refused": Kind.AUTHOR,
    "ebbtide.storage.errors.Corrupt": Kind.AUTHOR,  # the same bytes at the next try
    # Out of a GPU's memory: no other process is on the slot (promise 1), so the same batch does not fit again.
    "torch.OutOfMemoryError": Kind.AUTHOR,
    "torch.AcceleratorError": Kind.DEVICE,
    "torch.cuda.CudaError": Kind.DEVICE,
    "torch.distributed.DistError": Kind.PEER,  # DistStoreError, DistNetworkError, DistBackendError
    "ray.exceptions.RayError": Kind.PEER,  # an actor, a worker, a node or an object is gone
    "ConnectionError": Kind.PEER,
    "TimeoutError": Kind.PEER,
    "OSError": Kind.IO,
}
# A path of the author that is wrong, and that no retry puts right. The rest of OSError is what a machine does.
_WRONG_PATH = frozenset({"FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError"})
_WRONG_PATHS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})

_OURS = ("ebbtide.", "ebbtide_train.")
_EXAMPLES = "ebbtide_train.examples."

# What torch 2.x and its backends say in a bare RuntimeError; the first that matches counts.
_WORDS: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(words, re.IGNORECASE), kind)
    for words, kind in (
        ("device-side assert", Kind.AUTHOR),  # an index beyond its table: the same again
        ("out of memory", Kind.AUTHOR),
        (r"gloo/transport|connection closed by peer|connection reset|broken pipe|socket ?timeout", Kind.PEER),
        (r"\bnccl\b|timed out waiting|rendezvous|connect(?:ion)? (?:to \S+ )?(?:failed|refused|timed out)", Kind.PEER),
        (r"process group .*(?:abort|terminat)|collective operation timeout", Kind.PEER),
        (r"dataloader worker .*(?:exited unexpectedly|is killed by signal)", Kind.IO),
        (r"cuda error|cuda driver|cudnn_status|cublas_status|uncorrectable ecc|xid \d+", Kind.DEVICE),
    )
)
_SPEAKS_IN_WORDS = frozenset({"RuntimeError", "torch.AcceleratorError", "torch.distributed.DistBackendError"})


def kind_of(chain: tuple[Raised, ...]) -> Kind:
    """The kind of what ``chain`` begins with, in the light of what that was raised from."""
    first = chain[0]
    found = _kind(first)
    if found is Kind.AUTHOR and first.types[0] not in ("torch.OutOfMemoryError",):
        for cause in chain[1:]:
            if (why := _kind(cause)) in MACHINE:
                return why
    return found


def _kind(raised: Raised) -> Kind:
    if raised.types[0] in _SPEAKS_IN_WORDS:
        for words, kind in _WORDS:
            if words.search(raised.message):
                return kind
    for name in raised.types:
        if name in _WRONG_PATH or (name == "OSError" and raised.errno in _WRONG_PATHS):
            return Kind.AUTHOR
        if name in _TYPES:
            return _TYPES[name]
        if name.startswith(_OURS) and not name.startswith(_EXAMPLES):
            return Kind.POOL
    return Kind.AUTHOR
