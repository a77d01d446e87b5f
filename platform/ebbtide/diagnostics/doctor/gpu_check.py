"""GPUs, their driver, and which of its two kernel modules runs: the open one is needed for GPUDirect Storage.

Source: NVIDIA driver README, "Open Linux Kernel Modules" (GPUDirect Storage is listed among what works with the open
modules only; they need a Turing GPU or a newer one) and "/proc File System Interface".
"""

import re
from dataclasses import dataclass, field
from enum import Enum

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.host.nvml_reading import NvmlReading

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class of GPUs, the first byte


class Flavour(Enum):
    """The two kernel modules of NVIDIA's driver."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """GPUs and driver.

    Attributes:
        models: of the GPUs that the driver shows, by PCI address; without one where only NVML knows them.
        on_pci: PCI addresses of NVIDIA GPUs, driver or not.
        version: of the driver, such as ``580.95.05``.
        flavour: of its kernel module; None where nothing tells.
        registry: the driver's RegistryDwords, which switch on P2PDMA.
        nvml: what NVML says.
    """

    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    on_pci: tuple[str, ...] = ()
    version: str | None = None
    flavour: Flavour | None = None
    registry: str = ""
    nvml: NvmlReading = field(default_factory=NvmlReading)

    @property
    def present(self) -> bool:
        """Whether a GPU can be used here."""
        return bool(self.models)

    @property
    def major(self) -> int:
        """First number of the driver's version; 0 if unknown."""
        return int(self.version.split(".")[0]) if self.version else 0


def read_gpu(machine: Machine) -> GpuReading:
    """Ask /proc, /sys and NVML."""
    nvml = machine.nvml()
    models, addresses = [], []
    for address in machine.names("/proc/driver/nvidia/gpus"):
        information = machine.text(f"/proc/driver/nvidia/gpus/{address}/information") or ""
        found = re.search(r"^Model:\s*(.+)$", information, re.M)
        models.append(found[1].strip() if found else "unknown model")
        addresses.append(address)
    version, flavour = parse_version(machine.text("/proc/driver/nvidia/version") or "")
    registry = re.search(r"^RegistryDwords:\s*(.*)$", machine.text("/proc/driver/nvidia/params") or "", re.M)
    return GpuReading(
        models=tuple(models) or nvml.names,
        addresses=tuple(addresses),
        on_pci=tuple(
            address
            for address in machine.names("/sys/bus/pci/devices")
            if machine.text(f"/sys/bus/pci/devices/{address}/vendor") == _NVIDIA
            and (machine.text(f"/sys/bus/pci/devices/{address}/class") or "").startswith(_DISPLAY)
        ),
        version=version or nvml.driver_version,
        flavour=flavour,
        registry=registry[1].strip('" ') if registry else "",
        nvml=nvml,
    )


def parse_version(text: str) -> tuple[str | None, Flavour | None]:
    """Version and kind from ``/proc/driver/nvidia/version``."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    if not line:
        return None, None
    number = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)*)\b", line)
    return (number[1] if number else None), (Flavour.OPEN if "Open Kernel Module" in line else Flavour.PROPRIETARY)


def judge_gpu(gpu: GpuReading) -> list[Finding]:
    """What the GPUs and their driver allow."""
    if not gpu.present:
        return [_no_gpu(gpu)]
    names = ", ".join(f"{gpu.models.count(model)} x {model}" for model in dict.fromkeys(gpu.models))
    findings = [Finding("gpu.devices", Verdict.OK, names, values={"models": list(gpu.models)})]
    findings.append(_driver(gpu))
    if gpu.nvml.error:
        why = "slot locks then stand alone: nothing else can tell whose memory is left on a GPU"
        remedy = "pip install nvidia-ml-py (it comes with ebbtide[gpu]); in a container, give it the utility capability"
        findings.append(Finding("gpu.nvml", Verdict.MISSING, gpu.nvml.error, why, remedy))
    else:
        bar1 = [f"{size >> 20} MiB" for size in gpu.nvml.bar1_bytes]
        what = f"NVML answers; BAR1: {', '.join(dict.fromkeys(bar1)) or 'not told'}"
        findings.append(Finding("gpu.nvml", Verdict.OK, what, values={"bar1": list(bar1)}))
    return findings


def _no_gpu(gpu: GpuReading) -> Finding:
    why = "weights are loaded into host memory, and GPUDirect Storage does not apply"
    if not gpu.on_pci:
        what, remedy = "no NVIDIA GPU", "nothing, if this node is meant to have none"
        return Finding("gpu.devices", Verdict.MISSING, what, why, remedy, {"models": []})
    what = f"{len(gpu.on_pci)} NVIDIA GPU(s) on the PCI bus ({', '.join(gpu.on_pci)}), and no driver that shows them"
    remedy = "install the NVIDIA driver with its open kernel module, or give the container its GPUs (--gpus)"
    return Finding("gpu.devices", Verdict.MISSING, what, why, remedy, {"models": [], "pci": list(gpu.on_pci)})


def _driver(gpu: GpuReading) -> Finding:
    values = {"version": gpu.version, "flavour": gpu.flavour.value if gpu.flavour else None}
    name = f"driver {gpu.version or 'of unknown version'}"
    why = "GPUDirect Storage works with the driver's open kernel module only"
    if gpu.flavour is Flavour.OPEN:
        return Finding("gpu.driver", Verdict.OK, f"{name} with the open kernel module", values=values)
    if gpu.flavour is Flavour.PROPRIETARY:
        remedy = (
            "install the open kernel module of the same version (package nvidia-open, or --kernel-module-type=open)"
        )
        remedy += "; it needs a Turing GPU or a newer one"
        return Finding("gpu.driver", Verdict.LIMITED, f"{name} with the proprietary kernel module", why, remedy, values)
    what = f"{name}; /proc/driver/nvidia/version does not tell which kernel module runs"
    remedy = "look on the host: cat /proc/driver/nvidia/version"
    return Finding("gpu.driver", Verdict.UNKNOWN, what, why, remedy, values)
