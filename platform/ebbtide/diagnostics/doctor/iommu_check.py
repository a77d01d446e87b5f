"""What makes transfers between devices go up to the CPU's root complex, or takes devices away: IOMMU, ACS, VFIO.

Source: GDS installation guide ("iommu=off works best; iommu=pt is supported on some platforms; iommu=on is not
guaranteed to work"; on ARM it may stay on) and best practices guide (ACS forces transfers between devices through the
root complex); PCI Express base specification, 7.7.11 (the ACS capability: id 0x000d, control register at 6).
"""

import struct
from dataclasses import dataclass

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gpu_check import GpuReading
from ebbtide.diagnostics.host.machine_reader import Machine

_CLASSES = {"0x0108": "NVMe drive", "0x02": "network card", "0x03": "GPU", "0x0604": "bridge"}
_ACS_ID, _ACS_CONTROL = 0x000D, 6
_ACS_REDIRECT = 0x04 | 0x08 | 0x10  # requests, completions, upstream forwarding
_OFF = {"iommu=off", "intel_iommu=off", "amd_iommu=off"}
_PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1"}


@dataclass(frozen=True, slots=True)
class IommuReading:
    """What stands between devices.

    Attributes:
        units: of the IOMMU, as /sys/class/iommu names them; empty if it is off, or hidden by a virtual machine.
        domains: kinds of the address spaces of GPUs, network cards and NVMe drives: ``identity`` is passed through.
        options: of the kernel's command line that concern the IOMMU.
        architecture: such as ``x86_64``.
        taken: devices bound to vfio-pci, as ``address (what it is)``.
        redirecting: PCI bridges whose ACS sends transfers between devices upward; None if that cannot be read.
        virtual: this is a virtual machine.
    """

    units: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    architecture: str = "x86_64"
    taken: tuple[str, ...] = ()
    redirecting: tuple[str, ...] | None = ()
    virtual: bool = False

    @property
    def passes_through(self) -> bool:
        """Whether devices see the addresses that they are given."""
        if not self.units or _OFF & set(self.options):
            return True
        if self.domains:
            return set(self.domains) == {"identity"}
        return bool(_PASSTHROUGH & set(self.options))


def read_iommu(machine: Machine) -> IommuReading:
    """Ask /sys and the kernel's command line."""
    words = (machine.text("/proc/cmdline") or "").split()
    domains, taken = [], []
    for address in machine.names("/sys/bus/pci/devices"):
        place = f"/sys/bus/pci/devices/{address}"
        kind = _kind(machine, place)
        if machine.link_name(f"{place}/driver") == "vfio-pci":
            taken.append(f"{address} ({kind or 'another device'})")
        domain = machine.text(f"{place}/iommu_group/type")
        if domain and kind not in (None, "bridge"):
            domains.append(domain)
    return IommuReading(
        units=machine.names("/sys/class/iommu"),
        domains=tuple(dict.fromkeys(domains)),
        options=tuple(word for word in words if "iommu" in word),
        architecture=machine.uname().machine,
        taken=tuple(taken),
        redirecting=_redirecting(machine),
        virtual="hypervisor" in (machine.text("/proc/cpuinfo") or "").partition("\n\n")[0].split(),
    )


def _kind(machine: Machine, place: str) -> str | None:
    code = machine.text(f"{place}/class") or ""
    return next((name for start, name in _CLASSES.items() if code.startswith(start)), None)


def _redirecting(machine: Machine) -> tuple[str, ...] | None:
    """Bridges with ACS on: nvidia-fs lists them; else each bridge's configuration tells, to root alone."""
    listed = machine.text("/proc/driver/nvidia-fs/bridges")
    if listed is not None:
        return tuple(listed.split())
    found, hidden = [], False
    for address in machine.names("/sys/bus/pci/devices"):
        if _kind(machine, f"/sys/bus/pci/devices/{address}") != "bridge":
            continue
        space = machine.content(f"/sys/bus/pci/devices/{address}/config") or b""
        if len(space) <= 64:  # what others than root may read
            hidden = True
        elif redirects(space):
            found.append(address)
    return None if hidden and not found else tuple(found)


def redirects(space: bytes) -> bool:
    """Whether a PCI configuration space has ACS send transfers between devices upward."""
    at, seen = 0x100, set()
    while at and at not in seen and at + 8 <= len(space):
        seen.add(at)
        (header,) = struct.unpack_from("<I", space, at)
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS_ID:
            (control,) = struct.unpack_from("<H", space, at + _ACS_CONTROL)
            return bool(control & _ACS_REDIRECT)
        at = header >> 20 & 0xFFC
    return False


def judge_iommu(iommu: IommuReading, gpu: GpuReading) -> list[Finding]:
    """Devices that are taken away, always; what slows transfers between devices only where there is a GPU."""
    findings = [_taken(iommu)] if iommu.taken else []
    if gpu.present:
        findings += [_state(iommu), _acs(iommu)]
    return findings


def _taken(iommu: IommuReading) -> Finding:
    what = f"bound to vfio-pci: {', '.join(iommu.taken)}"
    why = "such a device belongs to a virtual machine or a user program: the kernel, and so the storage, cannot use it"
    address = iommu.taken[0].split()[0]
    remedy = f"give it back to its driver: echo {address} > /sys/bus/pci/drivers/vfio-pci/unbind, clear driver_override"
    remedy += f" in /sys/bus/pci/devices/{address}, echo {address} > /sys/bus/pci/drivers_probe"
    return Finding("iommu.vfio", Verdict.LIMITED, what, why, remedy, {"devices": list(iommu.taken)})


def _state(iommu: IommuReading) -> Finding:
    values = {"units": list(iommu.units), "domains": list(iommu.domains), "options": list(iommu.options)}
    if not iommu.units:
        hidden = " (this is a virtual machine: its host may have one)" if iommu.virtual else ""
        return Finding("iommu.state", Verdict.OK, f"no IOMMU is in the way{hidden}", values=values)
    if iommu.passes_through:
        return Finding("iommu.state", Verdict.OK, "the IOMMU passes addresses through", values=values)
    if iommu.architecture != "x86_64":
        return Finding("iommu.state", Verdict.OK, "the IOMMU translates, as it may on ARM", values=values)
    what = f"the IOMMU translates ({', '.join(iommu.domains) or 'no option on the command line says otherwise'})"
    why = "direct transfers between storage and GPU are slow then, or do not work at all"
    remedy = "boot with amd_iommu=off or intel_iommu=off, or with iommu=pt where virtual machines need the IOMMU"
    return Finding("iommu.state", Verdict.LIMITED, what, why, remedy, values)


def _acs(iommu: IommuReading) -> Finding:
    why = "with ACS on, a PCI switch sends transfers between NIC or drive and GPU up through the CPU"
    if iommu.redirecting is None:
        what, remedy = "whether PCI bridges redirect (ACS) cannot be read by this user", "run `ebbtide doctor` as root"
        return Finding("iommu.acs", Verdict.UNKNOWN, what, why, remedy)
    if not iommu.redirecting:
        return Finding("iommu.acs", Verdict.OK, "no PCI bridge redirects transfers between devices (ACS)")
    what = f"{len(iommu.redirecting)} PCI bridges redirect transfers between devices (ACS)"
    remedy = "switch ACS off in the BIOS, or for each bridge: setpci -s BRIDGE ECAP_ACS+0x6.w=0000"
    remedy += "; not where virtual machines share the node: ACS keeps them apart"
    return Finding("iommu.acs", Verdict.LIMITED, what, why, remedy, {"bridges": list(iommu.redirecting)})
