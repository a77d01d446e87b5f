"""Unpack parts of a bundle on the GPU machine: ``python unpack.py PART... [--to SITE]``.

Needs Python alone. Refuses a machine that the bundle is not for, and says what differs. Prints the environment that
the benchmarks want, and writes it to SITE/env.sh.
"""

import argparse
import compileall
import hashlib
import json
import os
import platform
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
WANTED = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # FlashInfer is not carried
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
}


def differences(manifest: dict[str, Any], *, gpu: bool) -> list[str]:
    """What this machine has otherwise than the one that a part is for; empty if it may be unpacked here."""
    found = []
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != manifest["python"]:
        found.append(f"Python {here}, not {manifest['python']}: make gpu-bundle PYTHON={here}")
    if platform.machine() != "x86_64":
        found.append(f"a processor of {platform.machine()}, not x86_64: there is no bundle for it")
    glibc = platform.libc_ver()[1]
    if glibc and _numbers(glibc) < _numbers(manifest["glibc"]):
        found.append(f"glibc {glibc}, older than {manifest['glibc']}: make gpu-bundle GLIBC={glibc}")
    try:
        import torch  # noqa: PLC0415 - a machine without it gets a clear error
    except ImportError as error:
        return [*found, f"no torch ({error}): install {manifest['torch']}, it is not carried"]
    wanted = manifest["torch"].partition("+")[0]
    if _numbers(torch.__version__.partition("+")[0])[:2] != _numbers(wanted)[:2]:
        found.append(f"torch {torch.__version__}, not {manifest['torch']}: make gpu-bundle TORCH={torch.__version__}")
    if gpu:
        found += _of_the_gpu(torch, manifest["sm"])
    return found


def _of_the_gpu(torch: Any, sm: int) -> list[str]:
    if not torch.cuda.is_available():
        return ["no GPU that torch can use (--no-gpu unpacks all the same)"]
    here = "{}{}".format(*torch.cuda.get_device_capability())
    if here == str(sm):
        return []
    return [f"a GPU of compute capability {here} ({torch.cuda.get_device_name()}), not {sm}: make gpu-bundle SM={here}"]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".") if number.isdigit())


def unpack(job: tuple[str, str, str]) -> str:
    """One archive into the site; what it took."""
    path, digest, site = job
    began_s = time.monotonic()
    if hashlib.sha256(Path(path).read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{path} is not what was packed: it was cut off or changed on its way; send it again")
    with tarfile.open(path, "r:xz") as packed:
        packed.extractall(site, filter="data")
    return f"{Path(path).name} {time.monotonic() - began_s:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path, help="folders part1, part2, ...")
    parser.add_argument("--to", type=Path, default=Path("/tmp/ebbtide-site"))
    parser.add_argument("--no-gpu", action="store_true", help="unpack on a machine without the GPU that it is for")
    given = parser.parse_args()
    jobs = []
    for part in given.parts:
        try:
            manifest = json.loads((part / MANIFEST).read_text())
        except OSError as error:
            raise SystemExit(f"{part} is no part of a bundle: {error}") from None
        wrong = differences(manifest, gpu=not given.no_gpu)
        if wrong:
            raise SystemExit(f"{part} is not for this machine. It has " + "; ".join(wrong))
        jobs += [(str(part / name), digest, str(given.to)) for name, digest in manifest["files"].items()]
    given.to.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for said in pool.map(unpack, jobs):
            print(said, flush=True)
    # Else every process of the line would compile what it imports, within the time that is measured.
    compileall.compile_dir(given.to, quiet=2, workers=0)
    lines = [f"export PYTHONPATH={given.to}", *(f"export {name}={value}" for name, value in WANTED.items())]
    (given.to / "env.sh").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
