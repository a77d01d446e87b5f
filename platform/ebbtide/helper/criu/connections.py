"""Who is at the other end of a tree's sockets and pipes.

The ends of a TCP connection on this machine are found by their addresses, which are each other's the other way round.
Unix sockets are asked about through sock_diag(7), since /proc/net/unix does not say who is connected to whom.
Source: linux/unix_diag.h, linux/sock_diag.h.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_TCP_LISTEN = "0A"
_V4_IN_V6 = "0000000000000000FFFF0000"  # ::ffff:0:0/96, as the kernel of a little-endian machine prints it
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBHIIIII")  # struct unix_diag_req
_ANSWER = struct.Struct("=BBBBIII")  # struct unix_diag_msg
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr


class Kind(Enum):
    """What a socket is, as far as it matters."""

    UNIX = "unix"
    TCP_LISTENING = "tcp listening"
    TCP_CONNECTED = "tcp"
    UDP = "udp"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Connection:
    """One socket; ``peer`` is the inode of the other end of a unix or TCP connection, 0 where there is none here."""

    inode: int
    kind: Kind
    peer: int = 0


def sockets_of(pid: int, inodes: Iterable[int]) -> Mapping[int, Connection]:
    """Each of these sockets, which must be in the network namespace of process ``pid`` and of ours."""
    unix = dict(_unix_peers())
    known = {inode: Connection(inode, Kind.UNIX, peer) for inode, peer in unix.items()}
    tcp = [row for table in ("tcp", "tcp6") for row in _table(pid, table)]
    # Those that nobody accepted yet have inode 0, as those that wait for their end.
    ends = {(row.here, row.there): row.inode for row in tcp if row.inode and row.state != _TCP_LISTEN}
    for row in tcp:
        if row.state == _TCP_LISTEN:
            known[row.inode] = Connection(row.inode, Kind.TCP_LISTENING)
        else:
            known[row.inode] = Connection(row.inode, Kind.TCP_CONNECTED, ends.get((row.there, row.here), 0))
    for table in ("udp", "udp6"):
        known |= {row.inode: Connection(row.inode, Kind.UDP) for row in _table(pid, table)}
    return {inode: known.get(inode, Connection(inode, Kind.OTHER)) for inode in inodes}


def holders_elsewhere(targets: frozenset[str], inside: frozenset[int]) -> Mapping[str, int]:
    """For each of these (such as ``pipe:[123]``) that a process outside also has open, one such process."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc") if targets else ():
        if not name.isdigit() or int(name) in inside:
            continue
        with suppress(OSError):  # it ended, or is none of ours
            for fd in os.listdir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{fd}")
                    if target in targets:
                        found.setdefault(target, int(name))
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of /proc/net/tcp and its like: addresses with ports, state and inode, see proc(5)."""

    here: str
    there: str
    state: str
    inode: int


def _table(pid: int, name: str) -> Iterator[_Row]:
    with suppress(FileNotFoundError):  # a kernel without IPv6
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            yield _Row(_plain(fields[1]), _plain(fields[2]), fields[3], int(fields[9]))


def _plain(address: str) -> str:
    """An IPv4 address in its IPv6 form is the IPv4 address."""
    return address.removeprefix(_V4_IN_V6)


def _unix_peers() -> Iterator[tuple[int, int]]:
    """Inode of every unix socket in our network namespace, with its peer's, or 0."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4) as diag:  # NETLINK_SOCK_DIAG
        diag.settimeout(5.0)  # the kernel answers at once; never hang on it
        ask = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UDIAG_SHOW_PEER, 0, 0)
        diag.send(_HEADER.pack(_HEADER.size + len(ask), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0) + ask)
        while True:
            raw = diag.recv(1 << 16)
            while raw:
                length, kind, *_ = _HEADER.unpack_from(raw)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError("the kernel does not say how unix sockets are connected")
                yield _peer(raw[_HEADER.size : length])
                raw = raw[_aligned(length) :]


def _peer(message: bytes) -> tuple[int, int]:
    *_, inode, _, _ = _ANSWER.unpack_from(message)
    rest = message[_ANSWER.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _UNIX_DIAG_PEER:
            return inode, int.from_bytes(rest[4:8], "little")
        rest = rest[max(_aligned(length), _ATTRIBUTE.size) :]
    return inode, 0


def _aligned(length: int) -> int:
    return (length + 3) & ~3
