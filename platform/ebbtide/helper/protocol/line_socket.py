"""One line each way over a unix socket, with limits of length and time. And who is at the other end."""

import socket
import struct
import time
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_PART_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, by the kernel's word."""

    pid: int
    uid: int


class LineTooLong(Exception):
    """More bytes than allowed came without a line end."""


class TooSlow(Exception):
    """The line did not come, or was not taken, in time."""


class Ended(Exception):
    """The other end closed before the line was there."""


def peer_of(connection: socket.socket) -> Peer:
    """Who connected (SO_PEERCRED, unix(7)): as of then, also if the descriptor was given away since."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def read_line(connection: socket.socket, limit_bytes: int, wait_s: float) -> bytes:
    """The first line, without its end; what follows it is not looked at.

    Raises:
        LineTooLong, TooSlow, Ended: there is none.
        OSError: the connection broke.
    """
    end_s = time.monotonic() + wait_s
    got = bytearray()
    while b"\n" not in got:
        if len(got) > limit_bytes:
            raise LineTooLong(f"more than {limit_bytes} bytes")
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TooSlow(f"no whole line within {wait_s:g} s")
        connection.settimeout(left_s)
        try:
            part = connection.recv(_PART_BYTES)
        except TimeoutError:
            raise TooSlow(f"no whole line within {wait_s:g} s") from None
        if not part:
            raise Ended("closed before the line was there")
        got += part
    line, _, _ = bytes(got).partition(b"\n")
    if len(line) > limit_bytes:
        raise LineTooLong(f"more than {limit_bytes} bytes")
    return line


def part(connection: socket.socket, limit_bytes: int, wait_s: float) -> None:
    """Say that no more comes, and hear the other end out, for a while: closed on unread bytes, our answer is lost.

    Raises:
        OSError: the connection broke.
    """
    connection.shutdown(socket.SHUT_WR)
    end_s, heard = time.monotonic() + wait_s, 0
    while heard < limit_bytes and (left_s := end_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            some = connection.recv(_PART_BYTES)
        except TimeoutError:
            return
        if not some:
            return
        heard += len(some)


def send_line(connection: socket.socket, line: bytes, wait_s: float) -> None:
    """Send a line that ends in a line end.

    Raises:
        TooSlow: the other end does not take it.
        OSError: the connection broke.
    """
    connection.settimeout(wait_s)
    try:
        connection.sendall(line)
    except TimeoutError:
        raise TooSlow(f"the answer was not taken within {wait_s:g} s") from None
