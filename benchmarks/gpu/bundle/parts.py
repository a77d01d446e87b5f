"""A site packed into parts: xz archives of some files each, a manifest for each part."""

import hashlib
import json
import lzma
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.gpu.bundle.plan import MB, Chunk, Target, into_parts

CHUNK_BYTES = 48 * MB  # before packing: they are packed and unpacked side by side, and fill the parts evenly
PRESET = 9
MANIFEST = "manifest.json"


def pack(site: Path, first: frozenset[str], target: Target, out: Path, commit: str) -> list[Path]:
    """Pack a site into ``out/part1``, ``out/part2`` and so on.

    Args:
        first: paths in the site of the first part.

    Raises:
        CannotBundle: it does not fit.
    """
    folder = out / "chunks"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (str(site), names, str(folder / f"{kind}-{number}.tar.xz"))
        for kind, of_first in (("benchmarks", True), ("line", False))
        for number, names in enumerate(_chunks(site, first, of_first=of_first), 1)
    ]
    with ProcessPoolExecutor(2) as pool:
        sizes = list(pool.map(_packed, jobs))
    chunks = [
        Chunk(Path(path).name, size, Path(path).name.startswith("benchmarks"))
        for (_, _, path), size in zip(jobs, sizes, strict=True)
    ]
    found = into_parts(chunks, target.part_mb * MB)
    made = []
    for number, part in enumerate(found, 1):
        place = out / f"part{number}"
        place.mkdir()
        for chunk in part:
            (folder / chunk.name).rename(place / chunk.name)
        _write_manifest(place, number, len(found), target, commit)
        made.append(place)
    folder.rmdir()
    return made


def _chunks(site: Path, first: frozenset[str], *, of_first: bool) -> list[list[str]]:
    """Files in groups of about a chunk; similar ones together, since they pack better."""
    files = [path for path in site.rglob("*") if path.is_file()]
    names = [name for path in files if ((name := str(path.relative_to(site))) in first) is of_first]
    groups: list[list[str]] = []
    size = CHUNK_BYTES
    for name in sorted(names, key=lambda one: (Path(one).suffix, one)):
        size += (site / name).stat().st_size
        if size > CHUNK_BYTES:
            groups.append([])
            size = (site / name).stat().st_size
        groups[-1].append(name)
    return groups


def _packed(job: tuple[str, Sequence[str], str]) -> int:
    site, names, path = job
    with lzma.open(path, "wb", preset=PRESET) as stream, tarfile.open(fileobj=stream, mode="w") as packed:
        for name in names:
            packed.add(Path(site) / name, arcname=name)
    return Path(path).stat().st_size


def _write_manifest(place: Path, number: int, of: int, target: Target, commit: str) -> None:
    files = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(place.glob("*.tar.xz"))}
    text = {
        "part": number,
        "of": of,
        "commit": commit,
        "python": target.python,
        "torch": target.torch,
        "sm": target.sm,
        "glibc": target.glibc,
        "files": files,
    }
    (place / MANIFEST).write_text(json.dumps(text, indent=1) + "\n")
