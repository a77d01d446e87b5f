"""A stored model's tensors in the order of its files, on the device where they are wanted, read one window ahead.

While the model takes the tensors of one window, the next is read and checked in the background. Memory: three windows,
and what the model keeps views of for longer; host memory is lent again when the last view of it is gone.

To a GPU the bytes go straight into a window there, so that narrowing to a rank's part happens at the speed of its
memory. Each rank reads all of the model: that is what the flat form is for.

Such a window is lent in the order of the stream on which the model takes its tensors, though by another thread:
torch's allocator lends memory again as soon as nobody names it, to whoever asks on the same stream: what is queued
there runs before. On another stream the next window could overwrite bytes that queued copies have still to read.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from ebbtide.storage.device.placements import Placement, Placements
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.safetensors.torch_views import torch_view
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.reading.transfers import NOTHING, SEGMENT_BYTES, read_ranges
from ebbtide_serve.loading.reading.windows import Window, cut_windows

Tensors = Iterator[tuple[str, torch.Tensor]]


class Checkpoint:
    """Reads the tensors of one stored model; for one thread.

    Attributes:
        report: of all that was read so far.
    """

    def __init__(
        self,
        stored: StoredObject,
        device: torch.device,
        reach: ProcessStore,
        *,
        window_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """``stored`` must stay open while tensors are read."""
        self._stored, self._device, self._reach = stored, device, reach
        self._window_bytes = max(window_bytes, stored.manifest.chunk_bytes)
        self.report: TransferReport = NOTHING

    def check_types(self, files: Iterable[str]) -> None:
        """See whether torch has the types of all tensors, before the first is read.

        Raises:
            Refused: it lacks one; names the tensor.
            Corrupt, TransferFailed: a header cannot be read.
        """
        nothing = torch.empty(0, dtype=torch.uint8)
        for name in files:
            for entry in self._stored.header(name).entries:
                torch_view(replace(entry, shape=(0,), offset=0, length=0), nothing)

    def tensors(self, files: Iterable[str], wanted: Callable[[str], bool] = lambda name: True) -> Tensors:
        """The tensors of some files by name.

        Args:
            files: safetensors files of the object.
            wanted: tensors for which it says False are not read, but for what shares a chunk with one that is.

        Raises:
            Corrupt: bytes are not those that were published; no tensor of that window was given.
            TransferFailed: they cannot be read.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as background:
            for name in files:
                file = self._stored.file(name)
                windows = cut_windows(
                    (entry for entry in self._stored.header(name).entries if wanted(entry.name)),
                    window_bytes=self._window_bytes,
                    chunk_bytes=file.chunk_bytes,
                    file_bytes=file.entry.size_bytes,
                )
                if windows:
                    yield from self._one_ahead(name, windows, background)

    def _one_ahead(self, name: str, windows: list[Window], background: ThreadPoolExecutor) -> Tensors:
        after: _WindowMemory | None = None
        scope = stream_scope(self._device)

        def read(number: int) -> tuple["_WindowMemory", TransferReport]:
            with scope():
                return read_in_order(number)

        def read_in_order(number: int) -> tuple["_WindowMemory", TransferReport]:
            nonlocal after  # lent here, in this thread: an engine may give the loading one a memory pool of its own
            present = after if after is not None else self._lend(windows[number])
            after = self._lend(windows[number + 1]) if number + 1 < len(windows) else None
            both = [place for one in (present, after) if one is not None for place in one.places]
            report = read_ranges(
                self._stored,
                name,
                Placements(both, self._device),
                windows[number].ranges,
                transport=self._reach.to_device(self._device),
            )
            return present, report

        reading = background.submit(read, 0)
        for number in range(len(windows)):
            present, report = reading.result()
            self.report = self.report + report
            if number + 1 < len(windows):
                reading = background.submit(read, number + 1)
            yield from present.views()
            del present

    def _lend(self, window: Window) -> "_WindowMemory":
        if self._device.type == "cpu":
            lent = self._reach.arenas.lend(max(window.size_bytes, 1))
            return _WindowMemory(window, torch.frombuffer(lent, dtype=torch.uint8))
        return _WindowMemory(window, torch.empty(window.size_bytes, dtype=torch.uint8, device=self._device))


class _WindowMemory:
    """A window's memory, and where the file's bytes go in it."""

    def __init__(self, window: Window, memory: torch.Tensor) -> None:
        self._window, self._memory = window, memory
        self.places = [
            Placement(entry.offset, memory[start : start + entry.length])
            for entry, start in zip(window.entries, window.starts, strict=True)
        ]

    def views(self) -> Tensors:
        """The tensors in it."""
        for entry, start in zip(self._window.entries, self._window.starts, strict=True):
            yield entry.name, torch_view(replace(entry, offset=start), self._memory)


def stream_scope(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """What puts another thread's work for ``device`` in the order of the stream that this thread works on now."""
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.current_stream(device)
    return lambda: torch.cuda.stream(stream)
