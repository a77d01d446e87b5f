"""What a worker says of itself right after its start: who its process is, where it prints, how others reach it."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray

from ebbtide.system.process import started_ticks


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """One worker."""

    pid: int
    started: int  # in clock ticks since boot: with the pid it names the process
    printed: tuple[str, ...]  # files that its stdout and stderr go to, on its node
    ip: str
    interface: str  # network interface that has this address; empty: not found
    port: int  # free there now


def worker_metadata() -> WorkerMetadata:
    """Run in the worker."""
    pid = os.getpid()
    ip = str(ray.util.get_node_ip_address())
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    # Ray has put the files of its session directory in the place of both.
    printed = (os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2))
    files = tuple(dict.fromkeys(path for path in printed if Path(path).is_file()))
    return WorkerMetadata(pid, started_ticks(pid) or 0, files, ip, _interface_of(ip), port)


def _interface_of(ip: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family in (socket.AF_INET, socket.AF_INET6) and address.address == ip for address in addresses):
            return name
    return ""
