"""``make gpu-bundle DIR=/tmp/bundle``: what a bare GPU machine needs for the proof, as numbered parts."""

import shutil
import tempfile
import time
from importlib.metadata import Distribution, distributions
from pathlib import Path

import click

from benchmarks.gpu.bundle import unpack as script
from benchmarks.gpu.bundle.parts import pack
from benchmarks.gpu.bundle.plan import FOR_BENCHMARKS, MB, CannotBundle, Target
from benchmarks.gpu.bundle.prune import prune
from benchmarks.gpu.bundle.site import ROOMS, TOOLS, add_tools, fetch, own_wheel, resolve, unpack
from evidence.provenance import commit

DEFAULT = Target()


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--part-mb", type=click.IntRange(1), default=DEFAULT.part_mb, show_default=True)
@click.option("--python", default=DEFAULT.python, show_default=True, help="of that machine")
@click.option("--torch", default=DEFAULT.torch, show_default=True, help="that it has, with its CUDA")
@click.option("--sm", type=int, default=DEFAULT.sm, show_default=True, help="compute capability of its GPU")
@click.option("--glibc", default=DEFAULT.glibc, show_default=True, help="that it has, or an older one")
def main(out: Path, part_mb: int, python: str, torch: str, sm: int, glibc: str) -> None:
    """Make the bundle."""
    target = Target(python=python, torch=torch, sm=sm, glibc=glibc, part_mb=part_mb)
    if out.exists():
        raise click.ClickException(f"{out} is there already; name a new folder")
    try:
        _make(target, out)
    except CannotBundle as error:
        shutil.rmtree(out, ignore_errors=True)
        raise click.ClickException(str(error)) from None


def _make(target: Target, out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-bundle-") as folder:
        work, site = Path(folder), Path(folder) / "site"
        _say(f"vLLM {target.vllm} for torch {target.torch}: resolving")
        pins = resolve(target, work)
        _say("fetching")
        wheels = [*fetch(target, pins, work / "wheels"), own_wheel(work)]
        _say(f"{len(wheels)} packages, {sum(one.stat().st_size for one in wheels) / MB:.0f} MB: unpacking, leaving out")
        unpack(wheels, site)
        add_tools(site)
        prune(site, target.sm)
        _say(f"packing {sum(one.stat().st_size for one in site.rglob('*') if one.is_file()) / MB:.0f} MB: some minutes")
        out.mkdir(parents=True)
        parts = pack(site, files_of_benchmarks(site), target, out, commit())
    shutil.copy(str(script.__file__), out / "unpack.py")
    for part in parts:
        size = sum(one.stat().st_size for one in part.iterdir())
        _say(f"{part}: {size / MB:.1f} MB")
    _say(f"there: python {out.name}/unpack.py {' '.join(f'{out.name}/{part.name}' for part in parts)}")


def files_of_benchmarks(site: Path) -> frozenset[str]:
    """The files of the first part: the tools, ebbtide itself, and the packages that they use."""
    found = {
        str(path.relative_to(site))
        for name in (*TOOLS, *(Path(room).name for room in ROOMS))
        for path in (site / name).rglob("*")
        if path.is_file()
    }
    for package in distributions(path=[str(site)]):
        if _name(package) in (*FOR_BENCHMARKS, "ebbtide"):
            found |= {str(file) for file in package.files or () if (site / str(file)).is_file()}
    return frozenset(found)


def _name(package: Distribution) -> str:
    return str(package.metadata["Name"]).lower().replace("_", "-").replace(".", "-")


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    main()
