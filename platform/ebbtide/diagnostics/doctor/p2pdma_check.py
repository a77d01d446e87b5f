"""GPUDirect Storage by the kernel's own P2PDMA, without nvidia-fs: for local NVMe drives only.

Why it is judged apart from nvidia-fs: it needs no module, but a kernel, a driver and settings of its own, and it serves
neither RAID0, nor NVMe over fabrics, nor Grace; for a *shared* filesystem nvidia-fs or the vendor's own way is needed.

Source: NVIDIA, "GDS Support for NVMe Drives Using Linux PCI P2PDMA" and GDS troubleshooting guide, chapter 14 (kernel
6.2, CONFIG_PCI_P2PDMA, open driver 565, the two registry keys, multipath); GDS release notes (KASLR).
"""

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gpu_check import Flavour, GpuReading
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.host.mount import Mount
from ebbtide.storage.device import cufile_json

_KERNEL = (6, 2)
_DRIVER = 565
_REGISTRY = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")  # on x86-64 only
_GPUS = ("A100", "A40", "L4", "L40S", "H100", "H200", "B100", "B200", "B300")  # named by the troubleshooting guide
_GRACE = ("GH200", "GB200", "GB300")
_WHY = "local NVMe drives then reach the GPU only through host memory"


@dataclass(frozen=True, slots=True)
class P2pdmaReading:
    """What decides about P2PDMA, the driver apart.

    Attributes:
        kernel: its release.
        architecture: such as ``x86_64``.
        compiled: CONFIG_PCI_P2PDMA; None if nothing tells.
        asked_for: cuFile is told to use it, by cufile.json or the environment.
        multipath: of the NVMe driver, which must be off on x86-64; None without that driver.
        kaslr: the kernel lies at a random address, with which P2PDMA can fail.
    """

    kernel: str = ""
    architecture: str = "x86_64"
    compiled: bool | None = None
    asked_for: bool = False
    multipath: bool | None = None
    kaslr: bool = True


def read_p2pdma(machine: Machine, config: Mapping[str, object]) -> P2pdmaReading:
    """Ask the kernel and cuFile's settings."""
    uname = machine.uname()
    multipath = machine.text("/sys/module/nvme_core/parameters/multipath")
    environ = machine.environ.get("CUFILE_USE_PCIP2PDMA", "").lower()
    return P2pdmaReading(
        kernel=uname.release,
        architecture=uname.machine,
        compiled=_compiled(machine, uname.release),
        asked_for=environ in ("1", "true", "yes", "on")
        if environ
        else cufile_json.setting(config, "properties", "use_pci_p2pdma", False) is True,
        multipath=None if multipath is None else multipath in ("Y", "1"),
        kaslr="nokaslr" not in (machine.text("/proc/cmdline") or "").split(),
    )


def _compiled(machine: Machine, release: str) -> bool | None:
    packed = machine.content("/proc/config.gz")
    text: str | None = None
    if packed is not None:
        try:
            text = gzip.decompress(packed).decode(errors="replace")
        except (OSError, EOFError):
            text = None
    for path in (f"/boot/config-{release}", f"/lib/modules/{release}/config", f"/lib/modules/{release}/build/.config"):
        text = text or machine.text(path)
    if text:
        return re.search(r"^CONFIG_PCI_P2PDMA=y", text, re.M) is not None
    symbols = machine.content("/proc/kallsyms")
    return None if not symbols else b" p2pdma_pgmap_ops" in symbols


def judge_p2pdma(p2pdma: P2pdmaReading, gpu: GpuReading, mount: Mount | None) -> list[Finding]:
    """Whether P2PDMA could serve, and what is in its way; nothing where there is no GPU."""
    if not gpu.present:
        return []
    values = {"kernel": p2pdma.kernel, "compiled": p2pdma.compiled, "asked_for": p2pdma.asked_for}
    if hard := _impossible(p2pdma, gpu):
        what = f"P2PDMA is not possible: {'; '.join(reason for reason, _ in hard)}"
        remedy = "; ".join(todo for _, todo in hard)
        return [Finding("p2pdma", Verdict.MISSING, what, _WHY, remedy, values)]
    if mount is not None and (reason := _not_served(mount)):
        what = f"P2PDMA does not serve this directory: {reason}"
        why = "it serves ext4 and xfs on local NVMe drives; RAID0, NVMe over fabrics and Grace are not supported"
        return [Finding("p2pdma", Verdict.MISSING, what, why, "use nvidia-fs for this directory", values)]
    if soft := _to_set(p2pdma, gpu):
        what = f"P2PDMA is possible, and not set up: {'; '.join(reason for reason, _ in soft)}"
        remedy = "; ".join(todo for _, todo in soft)
        return [Finding("p2pdma", Verdict.LIMITED, what, _WHY, remedy, values)]
    if p2pdma.compiled is None:
        what = "whether this kernel has P2PDMA cannot be read; all else is set up for it"
        remedy = f"look on the host: grep PCI_P2PDMA /boot/config-{p2pdma.kernel}"
        return [Finding("p2pdma", Verdict.UNKNOWN, what, _WHY, remedy, values)]
    what = "kernel, driver and settings are ready for P2PDMA with local NVMe drives"
    if p2pdma.kaslr and p2pdma.architecture == "x86_64":
        what += "; if transfers fail, boot with nokaslr (a known issue)"
    return [Finding("p2pdma", Verdict.OK, what, values=values)]


def _impossible(p2pdma: P2pdmaReading, gpu: GpuReading) -> list[tuple[str, str]]:
    found = []
    if gpu.flavour is Flavour.PROPRIETARY:
        found.append(("the driver runs its proprietary kernel module", f"install the open one, {_DRIVER} or newer"))
    elif gpu.major and gpu.major < _DRIVER:
        found.append((f"driver {gpu.version} is older than {_DRIVER}", f"install driver {_DRIVER} or newer"))
    number = re.match(r"(\d+)\.(\d+)", p2pdma.kernel)
    if number and (int(number[1]), int(number[2])) < _KERNEL:
        found.append((f"kernel {p2pdma.kernel} is older than 6.2", "boot a kernel of 6.2 or newer"))
    if p2pdma.compiled is False:
        found.append(("the kernel was built without CONFIG_PCI_P2PDMA", "boot a kernel that has it"))
    if any(name in model for model in gpu.models for name in _GRACE):
        found.append(("Grace is not supported", "use nvidia-fs"))
    elif not any(re.search(rf"\b{name}\b", model) for model in gpu.models for name in _GPUS):
        found.append((f"{gpu.models[0]} is not among the supported GPUs", "use nvidia-fs"))
    return found


def _not_served(mount: Mount) -> str:
    if mount.type not in ("ext4", "xfs"):
        return f"it is {mount.type}"
    if mount.device is None or mount.device.kind == "nvme":
        return ""
    kinds = {
        "nvme-of": "an NVMe drive over a fabric",
        "raid0": "a RAID0",
        "raid": "a RAID",
        "mapped": "a mapped device",
    }
    return f"{mount.device.name} is {kinds.get(mount.device.kind, 'no NVMe drive')}"


def _to_set(p2pdma: P2pdmaReading, gpu: GpuReading) -> list[tuple[str, str]]:
    found = []
    if not p2pdma.asked_for:
        found.append(("cufile.json does not ask for it", 'set "properties": {"use_pci_p2pdma": true} in cufile.json'))
    if p2pdma.architecture != "x86_64":
        return found
    missing = [key for key in _REGISTRY if key.lower() not in gpu.registry.lower()]
    if missing:
        option = f'options nvidia NVreg_RegistryDwords="{";".join(_REGISTRY)};"'
        todo = (
            f"put {option} into /etc/modprobe.d and reboot (seen with driver 570: 4 MiB of kernel memory lost per GPU"
        )
        found.append((f"the driver runs without {' and '.join(missing)}", f"{todo} and process)"))
    if p2pdma.multipath:
        found.append(("the NVMe driver has multipath on", "set `options nvme_core multipath=N` and reboot"))
    return found
