"""What NVML says, where there is one: the only importer of ``pynvml`` on this floor.

NVML answers in containers that hide /proc/driver/nvidia, and knows each GPU's BAR1, through which all DMA goes.
"""

from dataclasses import dataclass

from ebbtide.diagnostics.host.deadline import NoAnswer, within

_DEADLINE_S = 5.0  # a GPU that fell off its bus can make nvmlInit hang


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """What NVML told.

    Attributes:
        names: of the GPUs, in its order.
        driver_version: such as ``580.95.05``; None if it did not say.
        bar1_bytes: of each GPU, where it said.
        error: why it told nothing; empty if it did.
    """

    names: tuple[str, ...] = ()
    driver_version: str | None = None
    bar1_bytes: tuple[int, ...] = ()
    error: str = ""


def read_nvml() -> NvmlReading:
    """Ask NVML, for at most 5 s."""
    try:
        return within(_DEADLINE_S, _read)
    except NoAnswer as error:
        return NvmlReading(error=f"NVML: {error}")


def _read() -> NvmlReading:
    try:
        import pynvml  # noqa: PLC0415 - optional: it comes with the extra [gpu]
    except ImportError:
        return NvmlReading(error="the Python package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlReading(error=f"NVML does not start: {error}")
    try:
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return NvmlReading(
            names=tuple(_text(pynvml.nvmlDeviceGetName(gpu)) for gpu in gpus),
            driver_version=_text(pynvml.nvmlSystemGetDriverVersion()),
            bar1_bytes=tuple(int(pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total) for gpu in gpus),
        )
    except pynvml.NVMLError as error:
        return NvmlReading(error=f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
