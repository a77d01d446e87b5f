"""Wheels in one site: programs stay executable, and what lies beside it is put where it belongs."""

import zipfile
from pathlib import Path

from benchmarks.gpu.bundle.site import unpack


def test_a_program_of_a_wheel_stays_executable(tmp_path: Path) -> None:
    wheel, site = tmp_path / "ray-1.whl", tmp_path / "site"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, mode in (("ray/raylet", 0o755), ("ray/data.txt", 0o644)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100000 | mode) << 16
            packed.writestr(info, b"#!/bin/sh\n")
        packed.writestr("ray-1.data/purelib/extra/__init__.py", b"x = 1\n")
        packed.writestr("ray-1.data/scripts/ray", b"#!python\n")
    unpack([wheel], site)
    assert (site / "ray" / "raylet").stat().st_mode & 0o777 == 0o755
    assert (site / "ray" / "data.txt").stat().st_mode & 0o777 == 0o644
    assert (site / "extra" / "__init__.py").exists() and not (site / "ray-1.data").exists()
