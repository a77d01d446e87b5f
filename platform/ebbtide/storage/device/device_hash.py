"""The device hash of ``chunk_hash``, computed where the bytes are, with a few integer operations of torch.

Bytes that go from storage to device memory by DMA never pass through host memory; this tells whether they are right.
One multiplication for each 32-bit word and a sum, modulo 2^64: integers, so the result is the same on every device.

Done block by block: the products take twice the memory of the words, and a block's fit the caches of the device.

Cost, an estimate that no GPU has confirmed: for each byte of data about 3 bytes are read from memory (the word and
its key), and the products go through the cache. At 3 TB/s that is 1 ms for a GB, against 40 ms for its way over PCIe
5.0; each chunk adds some 50 us for starting kernels and waiting, which other threads' chunks hide. On a CPU: 0.39 CPU
s/GB with numpy (one core of a busy machine, one chunk again and again), more here.
"""

import torch

from ebbtide.storage.integrity.chunk_hash import WORD_BYTES, finish_device_hash, word_keys
from ebbtide.storage.transport.transport import CHUNK_BYTES

# Products of 8 MiB: below the second-level cache of data-centre GPUs (50 MB on an H100), and few kernels per chunk.
_BLOCK_WORDS = {"cuda": 1 << 20}
_CPU_BLOCK_WORDS = 1 << 16  # products of 512 KiB stay in a core's cache


class DeviceHasher:
    """Computes device hashes on one device; keeps 32 MiB of keys there. May be shared by threads."""

    def __init__(self, device: torch.device | str, *, block_words: int | None = None) -> None:
        """Put the keys on ``device``; ``block_words`` is how many words are multiplied at once."""
        self._keys = torch.from_numpy(word_keys().copy()).to(device)
        self._block_words = block_words or _BLOCK_WORDS.get(self._keys.device.type, _CPU_BLOCK_WORDS)

    def total(self, chunk: torch.Tensor) -> torch.Tensor:
        """The sum of the products of one chunk, a scalar of int64 on the device; does not wait for the device.

        Args:
            chunk: flat, of uint8, on the device, of at most ``CHUNK_BYTES``.

        Raises:
            ValueError: it is larger than that.
        """
        if chunk.numel() > CHUNK_BYTES:
            raise ValueError(f"a chunk of {chunk.numel()} bytes: at most {CHUNK_BYTES} can be hashed at once")
        if chunk.data_ptr() % WORD_BYTES or chunk.storage_offset() % WORD_BYTES:
            chunk = chunk.clone()  # words can only be read where they are aligned
        whole = chunk.numel() - chunk.numel() % WORD_BYTES
        words = chunk[:whole].view(torch.int32)
        total = torch.zeros((), dtype=torch.int64, device=chunk.device)
        for start in range(0, words.numel(), self._block_words):
            block = words[start : start + self._block_words]
            total += (block * self._keys[start : start + block.numel()]).sum()
        if whole < chunk.numel():
            last = torch.zeros(WORD_BYTES, dtype=torch.uint8, device=chunk.device)
            last[: chunk.numel() - whole] = chunk[whole:]
            # A slice of one key: with a scalar torch would multiply in 32 bits.
            total += (last.view(torch.int32) * self._keys[words.numel() : words.numel() + 1]).sum()
        return total

    def __call__(self, chunk: torch.Tensor, seed: int) -> int:
        """The hash of one chunk; waits for the device."""
        return finish_device_hash(int(self.total(chunk)), chunk.numel(), seed)
