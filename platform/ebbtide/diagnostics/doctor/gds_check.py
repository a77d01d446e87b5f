"""GPUDirect Storage by nvidia-fs: its module, cuFile's library, kvikio, and what a real probe says.

nvidia-fs sits between a filesystem's driver and the GPU; the drivers that know it are listed in its ``modules`` file,
each when the first process has opened nvidia-fs. cuFile falls back to copies through the CPU in silence wherever one
piece is missing, so each piece is named here, and the verdict is the probe's.

Not guaranteed: counters in ``stats`` stand still unless switched on (they cost speed with small requests).

Source: github.com/NVIDIA/gds-nvidia-fs (nvfs-proc.c, nvfs-stat.c, nvfs-kernel-interface.h); GDS troubleshooting guide.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gpu_check import Flavour, GpuReading
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.host.mount import Mount
from ebbtide.storage.device import cufile_json
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.transport.transfer_report import Mode

# The driver that must have registered with nvidia-fs, as its modules file names it: by type of a filesystem that nodes
# share, and by kind of the device under ext4 and xfs (docs: "GDS is enabled on the following filesystems").
_DRIVERS = {
    "nfs": "rpcrdma",
    "nfs4": "rpcrdma",
    "lustre": "lnet",
    "beegfs": "beegfs",
    "gpfs": "mmfslinux",
    "wekafs": "wekafsio",
}
_DEVICE_DRIVERS = {"nvme": "nvme", "raid0": "nvme", "raid": "nvme", "nvme-of": "nvme_rdma", "disk": "scsi_mod"}
_CPU_COPY = "bytes go through host memory, which costs CPU time and memory bandwidth; it works all the same"
_LIBRARIES = (
    "/usr/local/cuda*/targets/*/lib/{name}*",
    "/usr/local/cuda*/lib64/{name}*",
    "/usr/local/cuda*/gds/lib64/{name}*",
    "/usr/lib/*-linux-gnu/{name}*",
    "/usr/lib64/{name}*",
    "/usr/lib/{name}*",
)


@dataclass(frozen=True, slots=True)
class GdsReading:
    """The pieces of GPUDirect Storage.

    Attributes:
        module_loaded: nvidia-fs is in the kernel.
        version: of nvidia-fs; None where it does not say.
        drivers: of filesystems and devices that registered with it.
        stats: the line of its statistics about reads, and whether they are counted; empty without statistics.
        libcufile: where the library lies; None if it was not found.
        kvikio: the Python package can be found.
        udev_readable: /run/udev can be listed, which kvikio insists on.
        compat_allowed: cufile.json lets cuFile fall back.
        compat_forced: the environment makes it fall back always.
        probe: what really opening the driver and transferring showed; None if it was not tried.
    """

    module_loaded: bool = False
    version: str | None = None
    drivers: tuple[str, ...] = ()
    stats: str = ""
    libcufile: str | None = None
    kvikio: bool = False
    udev_readable: bool = True
    compat_allowed: bool = True
    compat_forced: bool = False
    probe: GdsVerdict | None = None


def read_gds(machine: Machine, config: Mapping[str, object], *, directory: Path | None, probe_s: float) -> GdsReading:
    """Ask /proc and /sys; where there is kvikio, try a transfer in ``directory`` for at most ``probe_s`` seconds."""
    kvikio = machine.importable("kvikio")
    # First of all: drivers of filesystems register when somebody opens nvidia-fs, and the counters shall have it.
    probe = machine.probe_gds(probe_s, directory) if kvikio and probe_s > 0 else None
    version = re.search(r"version:\s*(\S+)", machine.text("/proc/driver/nvidia-fs/version") or "")
    return GdsReading(
        module_loaded=machine.exists("/sys/module/nvidia_fs") or machine.exists("/proc/driver/nvidia-fs"),
        version=version[1] if version else None,
        drivers=tuple(
            line.split(":")[0] for line in (machine.text("/proc/driver/nvidia-fs/modules") or "").splitlines() if line
        ),
        stats=parse_stats(machine.text("/proc/driver/nvidia-fs/stats") or ""),
        libcufile=_library(machine, "libcufile.so"),
        kvikio=kvikio,
        udev_readable=machine.readable("/run/udev"),
        compat_allowed=cufile_json.setting(config, "properties", "allow_compat_mode", True) is not False,
        compat_forced=machine.environ.get("CUFILE_FORCE_COMPAT_MODE", "").lower() in ("1", "true", "yes", "on"),
        probe=probe,
    )


def _library(machine: Machine, name: str) -> str | None:
    for place in (*machine.environ.get("LD_LIBRARY_PATH", "").split(":"), *map(str, machine.site_packages)):
        where = Path(place)
        patterns = (f"{name}*", f"nvidia/*/lib/{name}*")
        for found in (sorted(where.glob(pattern)) for pattern in patterns) if place else ():
            if found:
                return str(found[0])
    return machine.find(*(pattern.format(name=name) for pattern in _LIBRARIES))


def parse_stats(text: str) -> str:
    """How many direct reads nvidia-fs has counted, in words; empty if ``text`` is not its statistics."""
    counted = re.search(r"^IO stats:\s*(\w+)", text, re.M)
    if counted is None:
        return ""
    if counted[1] != "Enabled":
        return "its counters are off"
    reads = re.search(r"^Reads\s*:\s*n=(\d+) ok=(\d+) err=(\d+)", text, re.M)
    return f"{reads[2]} of {reads[1]} direct reads went well since it was loaded" if reads else "its counters are on"


def judge_gds(gds: GdsReading, gpu: GpuReading, mount: Mount | None) -> list[Finding]:
    """What stands between the storage and the GPU; nothing where there is no GPU."""
    if not gpu.present:
        return []
    findings = [_module(gds, gpu, mount), _libcufile(gds), _kvikio(gds)]
    if not gds.udev_readable:
        what = "/run/udev cannot be read"
        why = f"kvikio then leaves cuFile alone and says nothing, as in most containers: {_CPU_COPY}"
        remedy = "mount /run/udev of the host into the container, read-only (-v /run/udev:/run/udev:ro)"
        findings.append(Finding("gds.udev", Verdict.MISSING, what, why, remedy))
    if gds.compat_forced:
        what, why = "CUFILE_FORCE_COMPAT_MODE is set", f"cuFile never transfers directly: {_CPU_COPY}"
        findings.append(Finding("gds.forced", Verdict.LIMITED, what, why, "unset CUFILE_FORCE_COMPAT_MODE"))
    findings.append(_probe(gds))
    return findings


def _module(gds: GdsReading, gpu: GpuReading, mount: Mount | None) -> Finding:
    if not gds.module_loaded:
        what = "nvidia-fs is not loaded"
        why = f"without it only local NVMe drives could reach the GPU directly (by P2PDMA); else {_CPU_COPY}"
        remedy = "install nvidia-gds for this driver and run `modprobe nvidia-fs` (on the host, for a container)"
        if gpu.flavour is Flavour.PROPRIETARY:
            remedy = f"{remedy}, once the driver runs its open kernel module"
        return Finding("gds.nvidia_fs", Verdict.MISSING, what, why, remedy)
    name = f"nvidia-fs {gds.version or 'of unknown version'} is loaded"
    values = {"version": gds.version, "drivers": list(gds.drivers)}
    if gds.stats:
        name = f"{name}; {gds.stats}"
    wanted = driver_under(mount) if mount is not None else None
    if mount is None or wanted in gds.drivers:
        known = f"; it serves {', '.join(gds.drivers)}" if gds.drivers else ""
        return Finding("gds.nvidia_fs", Verdict.OK, name + known, values=values)
    if wanted is None:
        what = f"{name}, but serves no {mount.type}{f' on {mount.device.name}' if mount.device else ''}"
        remedy = "for direct transfers use NFS over RDMA, Lustre, another parallel filesystem, or ext4 or xfs on NVMe"
    else:
        what = f"{name}, but {wanted}, the driver under this directory ({mount.type}), has not registered with it"
        remedy = f"install the {wanted} driver of MLNX_OFED, DOCA or the storage's vendor, built for nvidia-fs"
    return Finding("gds.nvidia_fs", Verdict.LIMITED, what, f"for this directory {_CPU_COPY}", remedy, values)


def driver_under(mount: Mount) -> str | None:
    """The driver that must have registered with nvidia-fs to serve ``mount``; None: it is never served."""
    if mount.type in ("ext4", "xfs"):
        return _DEVICE_DRIVERS.get(mount.device.kind) if mount.device is not None else None
    return _DRIVERS.get(mount.type)


def _libcufile(gds: GdsReading) -> Finding:
    if gds.libcufile:
        return Finding("gds.libcufile", Verdict.OK, f"cuFile's library is {gds.libcufile}")
    what, why = "cuFile's library (libcufile.so) was not found", f"nothing can ask for direct transfers: {_CPU_COPY}"
    return Finding(
        "gds.libcufile", Verdict.MISSING, what, why, "pip install nvidia-cufile, or install libcufile of CUDA"
    )


def _kvikio(gds: GdsReading) -> Finding:
    if gds.kvikio:
        return Finding("gds.kvikio", Verdict.OK, "kvikio is installed")
    what, why = "the Python package kvikio is not installed", f"ebbtide uses cuFile through it: {_CPU_COPY}"
    return Finding("gds.kvikio", Verdict.MISSING, what, why, "pip install kvikio-cu13 (it comes with ebbtide[gpu])")


def _probe(gds: GdsReading) -> Finding:
    if gds.probe is None:
        why = "only a transfer shows whether bytes really go past the CPU: cuFile falls back without saying so"
        what = "no direct transfer was tried: there is no kvikio"
        return Finding("gds.probe", Verdict.UNKNOWN, what, why, "install kvikio-cu13")
    values = {"works": gds.probe.works, "mode": gds.probe.mode.value if gds.probe.mode else None}
    if gds.probe.works:
        return Finding("gds.probe", Verdict.OK, gds.probe.why, values=values)
    verdict = Verdict.LIMITED if gds.probe.mode is Mode.COMPAT else Verdict.MISSING
    if "hung" in gds.probe.why:
        remedy = "look at the driver (nvidia-smi, dmesg); until then ebbtide leaves cuFile alone on this node"
    elif not gds.compat_allowed:
        remedy = "see the other findings about gds; allow_compat_mode is false, so that other programs fail as well"
    else:
        remedy = "see the other findings about gds, p2pdma, iommu and rdma: one of them is the reason"
    return Finding("gds.probe", verdict, gds.probe.why, _CPU_COPY, remedy, values)
