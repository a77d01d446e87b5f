"""The machine in words: GPU, driver, link, processor, memory, kernel, and the filesystem that is measured."""

import os
import platform
import subprocess
from pathlib import Path

import torch

_FIELDS = "name,driver_version,pcie.link.gen.max,pcie.link.width.max"


def hardware(device: torch.device) -> str:
    """What the figures come from."""
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    host = f"{os.cpu_count()} CPU cores ({platform.machine()}), {ram_bytes / 2**30:.0f} GiB, Linux {platform.release()}"
    return f"{_gpu(device)}; {host}" if device.type == "cuda" else f"{host}, no GPU"


def _gpu(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device)
    try:
        query = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader", f"--id={device.index or 0}"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        _, driver, generation, width = (part.strip() for part in told.split(","))
        return f"{name}, driver {driver}, PCIe {generation} x{width}"
    except (OSError, subprocess.SubprocessError, ValueError):
        return f"{name}, driver not known"


def filesystem(directory: Path) -> str:
    """Type and source of the mount that holds ``directory``, as /proc/self/mounts has them."""
    target, found = directory.resolve(), ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, mount, kind = line.split()[:3]
        if target.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, f"{kind} on {source}")
    return found[1]
