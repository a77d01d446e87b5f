"""GPUs of this node: whether their driver can freeze processes, and the modes in which no driver can.

Sources: NVIDIA/cuda-checkpoint README and issues 42 (MIG) and 51 (aarch64); defects of single versions stand in
`ebbtide.snapshot.driver.cuda.driver_defects`. Never supported by any driver that was found: MIG, MPS, managed memory,
multicast objects of NVLS.

What the driver itself says of its abilities is the helper's word (`Capabilities` of the driver port), if one answers.
"""

import re
from collections.abc import Iterator

from ebbtide.diagnostics.doctor.gpu_check import GpuReading, read_gpu
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.snapshot.driver.cuda.driver_defects import REMEDY, defect
from ebbtide.snapshot.driver.port import Capabilities
from ebbtide.snapshot.tiers import Means

CHECKPOINT_MAJOR = 570  # first branch that can freeze a process with NVML open, which PyTorch's always have
_DRIVER = "/proc/driver/nvidia/version"
_MPS = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps"})  # comm is cut at 15 letters
_UPGRADE = f"install driver {CHECKPOINT_MAJOR} or a later one on the node"
_BLOCKED = hindering(Means.DRIVER)


def gpu_facts(machine: Machine, said: Capabilities | None = None) -> tuple[int, tuple[Fact, ...]]:
    """How many GPUs this node has, and what its driver and their modes allow; no GPU: one fact that says so."""
    gpu = read_gpu(machine)
    if not gpu.present:
        what = "no GPU: its workers' tracked tensors in host memory count as device memory"
        if gpu.on_pci:
            what = f"{len(gpu.on_pci)} GPUs on the PCI bus that no driver shows; they are not used"
        return 0, (Fact("gpu.devices", what, "/proc/driver/nvidia/gpus", 0),)
    names = ", ".join(f"{gpu.models.count(model)} x {model}" for model in dict.fromkeys(gpu.models))
    devices = Fact("gpu.devices", names, "/proc/driver/nvidia/gpus", len(gpu.models))
    return len(gpu.models), (devices, _driver(gpu, said), *_modes(machine), *_defects(machine, gpu))


def _driver(gpu: GpuReading, said: Capabilities | None) -> Fact:
    version = gpu.version or "of unknown version"
    if said is not None:
        what = f"driver {version} ({said.driver or 'none'})"
        if said.why_not_checkpoint and not defect(version):  # that is told on its own
            what = f"driver {version} cannot freeze processes: {said.why_not_checkpoint}"
            return Fact("gpu.driver", what, "the driver, by the helper", gpu.version, _BLOCKED, _UPGRADE)
        can = "is of a branch that can freeze processes" if defect(version) else "can freeze processes"
        return Fact("gpu.driver", f"{what} {can}", "the driver, by the helper", gpu.version)
    if not gpu.major:
        remedy = f"look on the host: cat {_DRIVER}"
        return Fact("gpu.driver", "the driver's version cannot be read", _DRIVER, None, _BLOCKED, remedy)
    if gpu.major < CHECKPOINT_MAJOR:
        what = f"driver {version} cannot freeze a process that uses PyTorch: that came with {CHECKPOINT_MAJOR}"
        return Fact("gpu.driver", what, _DRIVER, gpu.version, _BLOCKED, _UPGRADE)
    what = f"driver {version} is of a branch that can freeze processes; it was not asked itself"
    return Fact("gpu.driver", what, _DRIVER, gpu.version)


def _modes(machine: Machine) -> Iterator[Fact]:
    base = "/proc/driver/nvidia/capabilities"
    parts = [
        f"{card}/mig/{part}"
        for card in machine.names(base)
        for part in machine.names(f"{base}/{card}/mig")
        if re.fullmatch(r"gi\d+", part)
    ]
    if parts:
        what = f"a GPU is cut into MIG instances ({', '.join(parts)}), which no driver can freeze"
        yield Fact("gpu.mig", what, base, len(parts), _BLOCKED, "switch MIG off: nvidia-smi -mig 0")
    servers = [
        int(name)
        for name in machine.names("/proc")
        if name.isdigit() and any((machine.text(f"/proc/{name}/comm") or "-") == one[:15] for one in _MPS)
    ]
    if servers:
        what = f"MPS runs here (process {servers[0]}), and no driver can freeze its clients"
        remedy = "end it: echo quit | nvidia-cuda-mps-control"
        yield Fact("gpu.mps", what, f"/proc/{servers[0]}/comm", servers[0], _BLOCKED, remedy)


def _defects(machine: Machine, gpu: GpuReading) -> Iterator[Fact]:
    if why := defect(gpu.version or ""):
        yield Fact("gpu.defect", why, _DRIVER, gpu.version, _BLOCKED, REMEDY)
    if machine.uname().machine == "aarch64":
        what = "on aarch64, drivers up to 580 do not freeze processes, and for later ones nobody has shown it"
        yield Fact("gpu.arch", what, "uname", "aarch64", _BLOCKED, "use x86_64 nodes for jobs that shall park in place")
