"""What a machine has that the line depends on, without touching the GPU in this process."""

import os
import resource
import shutil
from typing import Any

from benchmarks.gpu.line.setting import Setting
from benchmarks.rows import versions
from ebbtide.snapshot.driver.driver_choice import find_driver
from ebbtide.storage.device.gds_probe import probe_gds

GDS_S = 20.0


def machine_facts(setting: Setting) -> dict[str, Any]:
    """Memory, limits, versions; on a GPU also what driver and storage can do."""
    pages = os.sysconf("SC_PAGE_SIZE")
    found: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "ram_bytes": pages * os.sysconf("SC_PHYS_PAGES"),
        "shm_free_bytes": shutil.disk_usage("/dev/shm").free,
        "disk_free_bytes": shutil.disk_usage(setting.work).free,
        "locked_memory_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "kernel": os.uname().release,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "versions": versions(),
    }
    if not setting.cpu:
        found["cuda_checkpoint"] = str(find_driver().capabilities())
        found["gds"] = probe_gds(GDS_S, directory=setting.work).why
    return found
