"""The sources as windows of tokens: one memory-mapped uint16 file per tokenizer, written once, by rename."""

import os
from pathlib import Path

import numpy as np
import torch

from ebbtide_train.examples.stdlib_lm.tokenizer import load_tokenizer, source_files, texts


class TokenWindows:
    """Sample ``i`` is ``seq_len`` tokens from ``i * seq_len`` on, with the tokens after them as targets."""

    def __init__(self, path: Path, *, seq_len: int) -> None:
        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self._seq_len = seq_len

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._seq_len

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = index * self._seq_len
        window = torch.from_numpy(self._tokens[start : start + self._seq_len + 1].astype(np.int64))
        return window[:-1], window[1:]


def load_windows(cache_dir: Path, *, vocab_size: int, seq_len: int, limit_bytes: int) -> TokenWindows:
    """The standard library's tokens as samples; tokenizer and tokens are made at the first call and kept."""
    if vocab_size > 1 << 16:
        raise ValueError(f"vocab_size {vocab_size} does not fit 16-bit tokens; at most {1 << 16}")
    files = source_files(limit_bytes)
    tokenizer, key = load_tokenizer(cache_dir, files=files, vocab_size=vocab_size)
    path = cache_dir / f"tokens-{key}.u16"
    if not path.exists():
        end = tokenizer.token_to_id("<|end|>")
        encoded = tokenizer.encode_batch(list(texts(files)))
        tokens = np.concatenate([np.asarray([*item.ids, end], dtype=np.uint16) for item in encoded])
        temporary = path.with_suffix(f".{os.getpid()}")
        tokens.tofile(temporary)
        temporary.replace(path)
    return TokenWindows(path, seq_len=seq_len)
