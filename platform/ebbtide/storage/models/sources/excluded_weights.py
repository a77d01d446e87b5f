"""Weights of a directory that an import would not take, and that an engine may read from the directory itself. Pure.

An import takes one set of safetensors (``file_selection``). Some models keep more: a second encoder in a subdirectory,
a projection of sentence embeddings, a small head as a pickle beside. Without these an engine fails, or serves something
else in silence.

A guess by names, and meant to err to the side of too many. Not counted is what no engine reads beside the safetensors:
copies of the same weights for other programs, and what training leaves.
"""

import fnmatch
from collections.abc import Sequence
from pathlib import PurePosixPath

from ebbtide.storage.models.sources.file_selection import choose
from ebbtide.storage.models.sources.source import SourceFile
from ebbtide.storage.safetensors.file_header import SUFFIX

_WEIGHTS = frozenset({SUFFIX, ".bin", ".pt", ".pth"})
# By the whole name; a ``*`` matches ``/`` too.
_COPIES = (
    "pytorch_model*.bin",
    "consolidated*.pt",
    "consolidated*.pth",
    "original/*",
    "onnx/*",
    "openvino/*",
    "metal/*",
    "coreml/*",
    "gguf/*",
)
_OF_TRAINING = (
    *("training_args.bin", "optimizer*", "scheduler*", "rng_state*", "scaler*"),
    *("checkpoint-*/*", "global_step*/*", "runs/*"),
)


def left_behind(files: Sequence[SourceFile], where: str) -> list[str]:
    """Names of such files, sorted.

    Args:
        files: all that there are.
        where: the directory, for messages.

    Raises:
        Refused: an import would refuse the directory, see `choose`.
    """
    choice = choose(files, where)
    single = choice.single.name if choice.single is not None else ""
    return sorted(file.name for file in files if file.name != single and _may_be_read(file.name, indexed=not single))


def _may_be_read(name: str, *, indexed: bool) -> bool:
    suffix = PurePosixPath(name).suffix
    if suffix not in _WEIGHTS or any(fnmatch.fnmatchcase(name, one) for one in (*_COPIES, *_OF_TRAINING)):
        return False
    return "/" in name or suffix != SUFFIX or not indexed  # engines keep to the index, for the files beside it
