"""Which files of a directory belong to a model, which are left out, and why. Pure.

Weights are safetensors: those that the index names, or ``model.safetensors``, or the only file there is. Of the rest an
allow-list is taken: configuration, tokenizer, templates, licence. Whatever could run code is not: Python files are left
out, and pickles too where safetensors hold the weights; where they do not, the model is refused.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.source import SourceFile
from ebbtide.storage.names import file_name
from ebbtide.storage.safetensors.file_header import SUFFIX
from ebbtide.storage.safetensors.pickles import refuse_pickle

INDEX = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
SINGLE = "model.safetensors"
# By the last part of a name, without case.
SMALL = (
    *("*.json", "*.jsonl", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.md", "*.yaml", "*.yml"),
    *("license*", "licence*", "notice*", "copying*", "use_policy*"),
)
# The largest known are tokenizers of 35 MB; what is larger is something else.
MAX_SMALL_BYTES = 64 << 20
MAX_SMALL_FILES = 2000
_SHOWN = 5  # names in one note


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken of a directory.

    Attributes:
        index: the file that says which shards there are; None if the weights are ``single``.
        single: the one file of weights.
        small: everything else that is taken, the index among it.
        notes: what is left out that somebody may miss, and why; sentences.
    """

    index: SourceFile | None
    single: SourceFile | None
    small: tuple[SourceFile, ...]
    notes: tuple[str, ...]


def choose(files: Sequence[SourceFile], where: str) -> Choice:
    """Choose.

    Args:
        files: all that there are.
        where: the directory, for messages.

    Raises:
        Refused: there are no weights that can be taken, or nobody can tell which.
    """
    top = {file.name: file for file in files if "/" not in file.name}
    weights = [file for name, file in top.items() if name.endswith(SUFFIX)]
    index = _index(top, where)
    single = None if index else _single(weights, files, where)
    small: list[SourceFile] = []
    not_taken: dict[str, list[str]] = {}
    for file in files:
        if file.name.endswith(SUFFIX):
            continue
        if why := _why_not(file):
            not_taken.setdefault(why, []).append(file.name)
        else:
            small.append(file)
    if len(small) > MAX_SMALL_FILES:
        raise Refused(f"{where} has {len(small)} small files: name the directory of one model")
    notes = tuple(_note(names, why) for why, names in sorted(not_taken.items()))
    return Choice(index, single, tuple(small), notes)


def left_out(weights: Iterable[SourceFile], taken: Iterable[str]) -> list[str]:
    """The notes on safetensors files that are not taken."""
    known = set(taken)
    names = [file.name for file in weights if file.name not in known]
    return [_note(names, "not among the weights of this model")] if names else []


def _index(top: dict[str, SourceFile], where: str) -> SourceFile | None:
    indexes = [INDEX] if INDEX in top else [name for name in top if name.endswith(INDEX_SUFFIX)]
    if len(indexes) > 1:
        raise Refused(f"{where} has several indexes and no {INDEX}: {_some(indexes)}; leave one")
    if not indexes:
        return None
    index = top[indexes[0]]
    if index.size_bytes > MAX_SMALL_BYTES:  # it is read whole, and the length is only what a server says
        hint = f"an index of a model has no more than {MAX_SMALL_BYTES >> 20} MiB"
        raise Refused(f"{where}/{index.name} is said to have {index.size_bytes} bytes, and {hint}: name another source")
    return index


def _single(weights: Sequence[SourceFile], files: Sequence[SourceFile], where: str) -> SourceFile:
    for file in weights:
        if file.name == SINGLE:
            return file
    if len(weights) == 1:
        return weights[0]
    if weights:
        names = _some([file.name for file in weights])
        raise Refused(
            f"{where} has {len(weights)} safetensors files ({names}) and no {INDEX} that says which belong together: "
            "add the index, or leave one file"
        )
    for file in files:
        try:
            refuse_pickle(Path(file.name), b"")
        except Refused as error:
            raise Refused(f"{where} has no safetensors files, and {error}") from error
    below = [file.name for file in files if file.name.endswith(SUFFIX)]
    hint = f"; there are some below it ({_some(below)}): name that directory" if below else ""
    raise Refused(f"{where} has no safetensors files{hint}")


def _why_not(file: SourceFile) -> str:
    """Why a file that is no safetensors is left out; empty if it is taken."""
    last = PurePosixPath(file.name).name.lower()
    if last.endswith(".py"):
        return "code is never run from a store"
    try:
        refuse_pickle(Path(file.name), b"")
    except Refused:
        return "pickles can run code, and the safetensors beside them hold the weights"
    if not any(fnmatch.fnmatchcase(last, pattern) for pattern in SMALL):
        return "neither weights nor configuration"
    try:
        file_name(file.name)
    except Refused:
        return "such names cannot be used"
    return f"larger than {MAX_SMALL_BYTES >> 20} MiB" if file.size_bytes > MAX_SMALL_BYTES else ""


def _note(names: Sequence[str], why: str) -> str:
    return f"left out: {_some(names)} ({why})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(ascii(name)[1:-1] for name in sorted(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
