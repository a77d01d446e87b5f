"""A byte-level BPE tokenizer, trained on the standard library's sources and kept by the hash of what it came from.

Deterministic: the files are taken in sorted order, and ``tokenizers`` breaks ties by token id. Not guaranteed: the
same tokenizer from another release of Python or of ``tokenizers``; the cache key covers both.
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as error:  # vLLM brings it; an installation without vLLM has it by an extra
    raise ImportError(f"this example needs tokenizers ({error}): pip install 'ebbtide[examples]'") from error

_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}


def source_files(limit_bytes: int) -> list[Path]:
    """Sorted sources of the standard library, as many as fit in ``limit_bytes``; tests and packages left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    chosen: list[Path] = []
    total = 0
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED & set(path.relative_to(root).parts):
            continue
        total += path.stat().st_size
        if total > limit_bytes:
            break
        chosen.append(path)
    if not chosen:
        raise FileNotFoundError(f"{root} has no Python sources; install the standard library's sources")
    return chosen


def texts(files: list[Path]) -> Iterator[str]:
    """The files' texts; a byte that is no UTF-8 becomes a replacement sign."""
    for path in files:
        yield path.read_text(encoding="utf-8", errors="replace")


def content_key(files: list[Path], *more: object) -> str:
    """A hash over the files' bytes and whatever else the result depends on."""
    sha = hashlib.sha256(repr((version("tokenizers"), *more)).encode())
    for path in files:
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()[:16]


def load_tokenizer(cache_dir: Path, *, files: list[Path], vocab_size: int) -> tuple[Tokenizer, str]:
    """The tokenizer for these files, trained at the first call, and its key; safe for ranks that call it together."""
    key = content_key(files, vocab_size)
    path = cache_dir / f"tokenizer-{key}.json"
    if not path.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<|end|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts(files), trainer)
        cache_dir.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(tokenizer.to_str())
        temporary.replace(path)  # ranks may write together: the last whole file stands, all are equal
    return Tokenizer.from_file(str(path)), key
