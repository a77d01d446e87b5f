"""RDMA network cards, their addresses, and whether cuFile's settings file names addresses that this node has.

Why addresses come from two places: an address may sit on a VLAN or a bond above the card, or in another network
namespace (a container's); the card's GID table has it all the same, in its IPv4-mapped entries.

Source: sysfs-class-infiniband (kernel ABI); NVIDIA GDS configuration guide (rdma_dev_addr_list).
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.host.mount import Kind, Mount
from ebbtide.storage.device import cufile_json

# Their clients live in user space and get no RDMA at all without the list (cuFile compatibility table).
_LIST_NEEDED = ("wekafs", "gpfs")


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA card.

    Attributes:
        device: such as ``mlx5_0``.
        number: from 1 on.
        active: the link is up.
        state: as the kernel names it.
        rate: such as ``400 Gb/sec (4X NDR)``.
        link: ``InfiniBand`` or ``Ethernet``.
        interfaces: network interfaces of the card.
        addresses: IP addresses that lead to the port.
    """

    device: str
    number: str
    active: bool
    state: str
    rate: str
    link: str
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        addresses = ", ".join(self.addresses) or "no address"
        return f"{self.device}/{self.number} {self.state} {self.rate} {self.link} ({addresses})"


@dataclass(frozen=True, slots=True)
class RdmaReading:
    """Cards, and what cufile.json says of them.

    Attributes:
        ports: of all cards.
        settings: path of the settings file that is in force.
        listed: addresses in it, by place.
        error: why the settings file could not be understood; empty if it could, or is not there.
        there: whether the settings file exists.
    """

    ports: tuple[Port, ...] = ()
    settings: str = cufile_json.DEFAULT_PATH
    listed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    error: str = ""
    there: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the ports whose link is up, in the order of the cards."""
        return tuple(dict.fromkeys(address for port in self.ports if port.active for address in port.addresses))

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the cards with a link that is up; a list may name these too."""
        return tuple(dict.fromkeys(port.device for port in self.ports if port.active))


def read_settings(machine: Machine) -> tuple[Mapping[str, object], str, str]:
    """cuFile's settings, their path, and why they could not be understood (empty if they could)."""
    path = cufile_json.path_in_force(machine.environ)
    text = machine.text(path)
    if text is None:
        return {}, path, f"{path} cannot be read" if machine.exists(path) else ""
    try:
        return cufile_json.parse(text, path), path, ""
    except ValueError as error:
        return {}, path, str(error)


def read_rdma(machine: Machine) -> RdmaReading:
    """Ask /sys/class/infiniband, the network interfaces and the settings file."""
    config, path, error = read_settings(machine)
    own = machine.addresses()
    ports = []
    for device in machine.names("/sys/class/infiniband"):
        place = f"/sys/class/infiniband/{device}"
        interfaces = machine.names(f"{place}/device/net")
        direct = [address for name in interfaces for address in own.get(name, ())]
        for number in machine.names(f"{place}/ports"):
            port = f"{place}/ports/{number}"
            state = (machine.text(f"{port}/state") or "unknown").rpartition(":")[2].strip()
            ports.append(
                Port(
                    device,
                    number,
                    active=state == "ACTIVE",
                    state=state,
                    rate=machine.text(f"{port}/rate") or "of unknown rate",
                    link=machine.text(f"{port}/link_layer") or "",
                    interfaces=interfaces,
                    addresses=tuple(dict.fromkeys((*direct, *_mapped(machine, port)))),
                )
            )
    listed = tuple(cufile_json.listed_addresses(config).items())
    return RdmaReading(tuple(ports), path, listed, error, machine.exists(path))


def _mapped(machine: Machine, port: str) -> list[str]:
    found = []
    for index in machine.names(f"{port}/gids"):
        try:
            mapped = ipaddress.IPv6Address(machine.text(f"{port}/gids/{index}") or "").ipv4_mapped
        except ValueError:
            continue
        if mapped is not None and int(mapped):
            found.append(str(mapped))
    return found


def judge_rdma(rdma: RdmaReading, mount: Mount | None) -> list[Finding]:
    """The cards, and the addresses in the settings file."""
    findings = [_cards(rdma, mount)]
    if rdma.error:
        what, why = f"cuFile's settings cannot be used: {rdma.error}", "cuFile goes on with its defaults, or fails"
        remedy = f"mend {rdma.settings}, or name another file in {cufile_json.PATH_VARIABLE}"
        findings.append(Finding("rdma.settings", Verdict.MISSING, what, why, remedy, {"path": rdma.settings}))
    elif rdma.ports or rdma.listed:
        findings.append(_addresses(rdma, mount))
    return findings


def _wanted(mount: Mount | None) -> bool:
    return mount is not None and (mount.over_rdma or mount.kind is Kind.PARALLEL)


def _cards(rdma: RdmaReading, mount: Mount | None) -> Finding:
    values = {"ports": [str(port) for port in rdma.ports]}
    if not rdma.ports:
        if mount is None or not _wanted(mount):
            return Finding("rdma.cards", Verdict.OK, "no RDMA network card; nothing here asks for one", values=values)
        what, why = "no RDMA network card is visible", f"{mount.type} at {mount.point} moves its data by RDMA"
        remedy = "load the card's driver (mlx5_ib); give a container /dev/infiniband and the host's network"
        return Finding("rdma.cards", Verdict.MISSING, what, why, remedy, values)
    up = [port for port in rdma.ports if port.active]
    shown = "; ".join(map(str, up or rdma.ports))
    if mount is not None and not _wanted(mount):
        return Finding("rdma.cards", Verdict.OK, f"{shown}; {mount.type} here does not ask for RDMA", values=values)
    if not up:
        why, remedy = "no byte goes by RDMA", "look at cable, switch and subnet manager: rdma link, ibstat"
        return Finding("rdma.cards", Verdict.MISSING, f"no RDMA link is up: {shown}", why, remedy, values)
    down = [f"{port.device}/{port.number}" for port in rdma.ports if not port.active]
    bare = [f"{port.device}/{port.number}" for port in up if not port.addresses]
    if down or bare:
        parts = [f"without a link: {', '.join(down)}"] * bool(down)
        parts += [f"without an IP address: {', '.join(bare)}"] * bool(bare)
        what, why = f"{shown}; {'; '.join(parts)}", "traffic is spread over fewer ports than this node has"
        return Finding("rdma.cards", Verdict.LIMITED, what, why, "connect and address these ports, if meant", values)
    return Finding("rdma.cards", Verdict.OK, shown, values=values)


def _addresses(rdma: RdmaReading, mount: Mount | None) -> Finding:
    here = {*rdma.addresses, *rdma.devices}
    command = f"ebbtide doctor --write-cufile-json PATH, then {cufile_json.PATH_VARIABLE}=PATH for what runs here"
    values = {"settings": rdma.settings, "here": list(rdma.addresses)}
    stale = {where: [one for one in listed if one not in here] for where, listed in rdma.listed}
    wrong = [f"{where} names {', '.join(gone)}" for where, gone in stale.items() if gone]
    if wrong:
        what = f"{rdma.settings}: {'; '.join(wrong)}; this node has {', '.join(rdma.addresses) or 'no RDMA address'}"
        why = "cuFile finds no card for such an address and falls back to copies through the CPU; only its log says so"
        return Finding("rdma.addresses", Verdict.LIMITED, what, why, command, values)
    if rdma.listed:
        what = f"{rdma.settings} names addresses that this node has"
        return Finding("rdma.addresses", Verdict.OK, what, values=values)
    state = "names no RDMA address" if rdma.there else "does not exist"
    if not _wanted(mount) or not rdma.addresses:
        return Finding("rdma.addresses", Verdict.OK, f"{rdma.settings} {state}; nothing here needs it", values=values)
    assert mount is not None
    what = f"{rdma.settings} {state}; this node has {', '.join(rdma.addresses)}"
    why = "cuFile chooses a card by itself, which need not be the one nearest to the GPU"
    if mount.type in _LIST_NEEDED:
        why = f"for {mount.type} cuFile uses RDMA only with that list"
    return Finding("rdma.addresses", Verdict.LIMITED, what, why, command, values)
