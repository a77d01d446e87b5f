"""A site with all packages, from the package index: resolved, fetched and unpacked for another machine."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.bundle.plan import BESIDE, LEFT_OUT, ON_THE_MACHINE, CannotBundle, Target
from evidence.provenance import NOTED, SOURCES, commit

ROOT = SOURCES.parent
ROOMS = (
    "platform/ebbtide",
    "platform/ebbtide_testing",
    "autoscaler/ebbtide_autoscaler",
    "autoscaler/ebbtide_simulator",
    "serve_apps/ebbtide_serve",
    "train_jobs/ebbtide_train",
)
TOOLS = ("benchmarks", "evidence")
OLDEST_GLIBC = 17  # manylinux2014


def resolve(target: Target, work: Path) -> Path:
    """A file with a pin for every package that is carried.

    Raises:
        CannotBundle: the package index has no such set.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kvikio = f"kvikio-cu{target.cuda}"
    wanted = [*project["dependencies"], f"vllm=={target.vllm}", *BESIDE, kvikio]
    (work / "wanted.txt").write_text("\n".join(wanted) + "\n")
    never = [f"{name}; sys_platform == 'never'" for name in (*ON_THE_MACHINE, *LEFT_OUT)]
    (work / "left_out.txt").write_text("\n".join(never) + "\n")
    pins = work / "pins.txt"
    _run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header", "--no-annotate"),
            *("--python-version", target.python),
            *("--python-platform", f"x86_64-manylinux_{target.glibc.replace('.', '_')}"),
            *("--override", str(work / "left_out.txt"), "-o", str(pins), str(work / "wanted.txt")),
        ]
    )
    return pins


def fetch(target: Target, pins: Path, wheels: Path) -> list[Path]:
    """The wheels of all pins.

    Raises:
        CannotBundle: there is no wheel for this machine.
    """
    newest = int(target.glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(OLDEST_GLIBC, newest + 1)]
    platforms = [word for tag in (*tags, "manylinux2014_x86_64", "manylinux1_x86_64") for word in ("--platform", tag)]
    _run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
            *("--implementation", "cp", "--python-version", target.python, *platforms),
            *("-d", str(wheels), "-r", str(pins)),
        ]
    )
    return sorted(wheels.glob("*.whl"))


def own_wheel(work: Path) -> Path:
    """ebbtide itself, from this tree."""
    folder = work / "own"
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)])
    (found,) = folder.glob("ebbtide-*.whl")
    return found


def unpack(wheels: Sequence[Path], site: Path) -> None:
    """All wheels into one site."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            for info in packed.infolist():
                path = packed.extract(info, site)
                if mode := info.external_attr >> 16:  # zipfile leaves them out: Ray's programs must be executable
                    os.chmod(path, mode)
    for data in site.glob("*.data"):  # what an installer puts beside the site: only what belongs into it
        for part in ("purelib", "platlib"):
            if (data / part).exists():
                shutil.copytree(data / part, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def add_tools(site: Path) -> None:
    """The benchmarks, which are in no wheel, and the commit that they are of."""
    for name in TOOLS:
        shutil.copytree(
            ROOT / name, site / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "results")
        )
    (site / NOTED.relative_to(ROOT)).write_text(commit() + "\n")


def _run(command: list[str]) -> None:
    environment = dict(os.environ)
    if links := environment.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", links)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise CannotBundle(f"`{' '.join(command[:6])} ...` ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
