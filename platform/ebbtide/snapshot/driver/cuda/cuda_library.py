"""The CUDA driver's library through ``cuda-bindings``: loading, starting it once, and what it has. One of three
modules that call it; the others are ``cuda_driver`` and ``custom_storage``.

``cuda-core`` is not used: it has no custom storage, and its ``Process.state`` raises where that is under way.
The bindings are imported when a `CudaLibrary` is made, so that machines without them can import this.
"""

import re
import uuid
from pathlib import Path
from typing import Any

KERNEL = Path("/proc/driver/nvidia")
_NAME_BYTES = 256  # of a GPU; they have some 30 letters


class NoCuda(Exception):
    """There is no CUDA driver to be had here; the text says what is missing. Use `NoDriver`."""


class CudaRefused(Exception):
    """The driver said no to a call that is about no process; the text is CUDA's name of the result."""


class CudaLibrary:
    """The started driver. Make one for a process: starting takes seconds on a machine with eight GPUs.

    Attributes:
        api: the module ``cuda.bindings.driver``.
        cuda_version: the newest CUDA that the driver speaks: 1000 x major + 10 x minor.
    """

    def __init__(self, kernel: Path = KERNEL) -> None:
        """Load and start it.

        Args:
            kernel: where the kernel's part of the driver shows itself.

        Raises:
            NoCuda: no bindings, no driver, or one that does not start.
        """
        try:
            from cuda.bindings import driver  # noqa: PLC0415 - optional: machines without a GPU need not have it
        except ImportError as error:
            raise NoCuda(f"cuda-bindings is not installed ({error}): pip install 'ebbtide[gpu]'") from error
        self.api: Any = driver
        self._kernel = kernel
        try:
            self.ask(driver.cuInit(0))
            self.cuda_version = int(self.ask(driver.cuDriverGetVersion()))
        except RuntimeError as error:  # what the bindings raise if there is no libcuda.so.1
            raise NoCuda(f"no CUDA driver on this machine: {' '.join(str(error).split())}") from error
        except CudaRefused as error:
            raise NoCuda(f"the CUDA driver does not start: {error}") from error

    def ask(self, answer: tuple[Any, ...]) -> Any:
        """The value in an answer of the bindings, for calls about no process.

        Raises:
            CudaRefused: there is none.
        """
        if answer[0]:
            raise CudaRefused(self.name(answer[0]))
        return answer[1] if len(answer) > 1 else None

    def name(self, code: Any) -> str:
        """What CUDA calls a result."""
        error, text = self.api.cuGetErrorName(code)
        return f"CUDA result {int(code)}" if error else str(text.decode())

    def has(self, symbol: str, version: int) -> bool:
        """Whether the driver, and the bindings, have a function as of a CUDA version."""
        if not hasattr(self.api, symbol):
            return False
        code, address, _ = self.api.cuGetProcAddress(symbol.encode(), version, 0)
        return not code and bool(int(address))

    def describe(self) -> str:
        """Both versions, for people."""
        major, minor = divmod(self.cuda_version, 1000)
        return f"CUDA {major}.{minor // 10}, kernel driver {self.kernel_version() or 'unknown'}"

    def devices(self) -> list[Any]:
        """All GPUs that this process sees."""
        count = int(self.ask(self.api.cuDeviceGetCount()))
        return [self.ask(self.api.cuDeviceGet(index)) for index in range(count)]

    def gpu(self, device: Any) -> str:
        """The uuid of a GPU, as NVML writes it."""
        return f"GPU-{uuid.UUID(bytes=bytes(self.ask(self.api.cuDeviceGetUuid(device)).bytes))}"

    def chips(self) -> dict[str, str]:
        """What each GPU is, by its uuid; empty if the driver does not say."""
        try:
            names = {
                self.gpu(device): self.ask(self.api.cuDeviceGetName(_NAME_BYTES, device)) for device in self.devices()
            }
        except CudaRefused:
            return {}
        return {gpu: bytes(name).partition(b"\0")[0].decode(errors="replace") for gpu, name in names.items()}

    def why_gpus_are_hidden(self) -> str:
        """ "" if this process sees all GPUs that the kernel's part shows."""
        folder = self._kernel / "gpus"
        shown = len(list(folder.iterdir())) if folder.is_dir() else 0
        try:
            seen = len(self.devices())
        except CudaRefused as error:
            return f"the driver does not say which GPUs there are: {error}"
        if seen >= shown:
            return ""
        return f"this process sees {seen} of {shown} GPUs: start it without CUDA_VISIBLE_DEVICES"

    def kernel_version(self) -> str:
        """Of the kernel's part, which has the driver's version; "" if it is unknown."""
        try:
            text = (self._kernel / "version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
        return found.group() if found else ""
