"""Packed and unpacked again it is the same site; a machine that it is not for is refused by name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.bundle import unpack as script
from benchmarks.gpu.bundle.parts import MANIFEST, pack
from benchmarks.gpu.bundle.plan import CannotBundle, Target

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def site(folder: Path) -> Path:
    made = folder / "site"
    for name, content in {"a/__init__.py": b"x = 1\n", "b.so": bytes(range(256)) * 500, "c/deep/d.txt": b"d"}.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    (made / "b.so").chmod(0o755)
    return made


TARGET = Target(python=HERE, torch="2.11+cu130", glibc="2.17", part_mb=1)
# Of a machine with that torch; with a GPU where a test says so.
TORCH = """
__version__ = "2.11.0+cu130"
class cuda:
    is_available = staticmethod(lambda: {gpu} is not None)
    get_device_capability = staticmethod(lambda: {gpu})
    get_device_name = staticmethod(lambda: "some GPU")
"""


def unpacked(folder: Path, *words: str, gpu: tuple[int, int] | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "torch.py").write_text(TORCH.format(gpu=gpu))
    # Without bytecode: of two sources with one length and one second, the second would be taken for the first.
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, str(script.__file__), *words], env=env, capture_output=True, text=True)


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    made, to = site(tmp_path), tmp_path / "to"
    parts = pack(made, frozenset({"a/__init__.py"}), TARGET, tmp_path / "out", "abc")
    assert [part.name for part in parts] == ["part1", "part2"]
    assert [path.name for path in parts[0].glob("*.tar.xz")] == ["benchmarks-1.tar.xz"]
    done = unpacked(tmp_path, *map(str, parts), "--to", str(to), "--no-gpu")
    assert done.returncode == 0, done.stderr
    assert f"export PYTHONPATH={to}" in done.stdout and (to / "env.sh").exists()
    files = {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert files == {name: (to / name).read_bytes() for name in files}
    assert (to / "b.so").stat().st_mode & 0o111


def test_a_part_that_was_changed_on_its_way_is_not_unpacked(tmp_path: Path) -> None:
    (part,) = pack(site(tmp_path), frozenset(), TARGET, tmp_path / "out", "abc")
    (one,) = part.glob("*.tar.xz")
    one.write_bytes(one.read_bytes()[:-1] + b"?")
    done = unpacked(tmp_path, str(part), "--to", str(tmp_path / "to"), "--no-gpu")
    assert done.returncode != 0 and "is not what was packed" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": "3.99"}, f"It has Python {HERE}, not 3.99: make gpu-bundle PYTHON={HERE}"),
        ({"glibc": "9.1"}, "older than 9.1"),
        ({"torch": "1.2+cu130"}, "not 1.2+cu130: make gpu-bundle TORCH="),
    ],
)
def test_another_machine_is_refused_by_name(tmp_path: Path, change: dict[str, str], said: str) -> None:
    (part,) = pack(site(tmp_path), frozenset(), TARGET, tmp_path / "out", "abc")
    manifest = json.loads((part / MANIFEST).read_text())
    (part / MANIFEST).write_text(json.dumps(manifest | change))
    done = unpacked(tmp_path, str(part), "--to", str(tmp_path / "to"), "--no-gpu")
    assert done.returncode != 0 and said in done.stderr
    assert not (tmp_path / "to").exists()


def test_a_machine_with_another_gpu_or_none_is_refused(tmp_path: Path) -> None:
    (part,) = pack(site(tmp_path), frozenset(), TARGET, tmp_path / "out", "abc")
    to = ("--to", str(tmp_path / "to"))
    assert "no GPU that torch can use" in unpacked(tmp_path, str(part), *to).stderr
    other = unpacked(tmp_path, str(part), *to, gpu=(8, 0))
    assert "a GPU of compute capability 80 (some GPU), not 90: make gpu-bundle SM=80" in other.stderr
    assert not (tmp_path / "to").exists()
    assert unpacked(tmp_path, str(part), *to, gpu=(9, 0)).returncode == 0


def test_a_folder_that_is_no_part_is_named(tmp_path: Path) -> None:
    done = unpacked(tmp_path, str(tmp_path), "--no-gpu")
    assert done.returncode != 0 and f"{tmp_path} is no part of a bundle" in done.stderr


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    noise = tmp_path / "site"
    noise.mkdir()
    (noise / "noise.bin").write_bytes(os.urandom(4_000_000))
    with pytest.raises(CannotBundle, match="does not fit 3 parts of 1 MB"):
        pack(noise, frozenset(), TARGET, tmp_path / "out", "abc")
