"""The other loaders, in a folder of their own: they are no dependencies of ours, and some pull in gigabytes."""

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

# Pinned, so that a result names what it was compared with; without dependencies, since kvikio's are CUDA's.
PINS = (
    "fastsafetensors==0.5.0",
    "runai-model-streamer==0.17.0",
    "humanize==4.13.0",
    "kvikio-cu13==26.10.0",
    "libkvikio-cu13==26.10.0",
    "rapids-logger==0.3.0",
    "nvidia-cufile==1.15.1.6",
    "cuda-pathfinder==1.3.0",
)


def install(directory: Path) -> dict[str, str]:
    """Install what can be had; why others cannot, by name."""
    missing: dict[str, str] = {}
    for pin in PINS:
        name = pin.partition("==")[0]
        for wanted in (pin, name):
            command = [
                sys.executable,
                "-m",
                "uv",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--target",
                str(directory),
                wanted,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode == 0:
                missing.pop(name, None)
                break
            missing[name] = done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no reason given"
    return missing


def versions(directory: Path) -> dict[str, str]:
    """Of all that is installed there, by name, as its own metadata have it: the pins say only what was asked for."""
    return {one.name: one.version for one in distributions(path=[str(directory)])}


def environment(directory: Path, stub: Path | None) -> dict[str, str]:
    """For processes that use them."""
    paths = [str(directory), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in paths if one), "KVIKIO_COMPAT_MODE": "ON"}
    if stub is not None:
        libraries = [str(stub), *(str(path.parent) for path in directory.glob("nvidia/*/lib/libcufile.so*"))]
        found["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")])
    return found
