"""Which logs are shown, searched and packed."""

import os
import tarfile
from pathlib import Path

from benchmarks.gpu.line.logs import archive, modes, tails


def made(folder: Path) -> Path:
    (folder / "ray").mkdir(parents=True)
    (folder / "store" / "objects" / "a").mkdir(parents=True)
    (folder / "ray" / "worker-1.err").write_text("".join(f"line {n}\n" for n in range(100)))
    (folder / "ray" / "rank-0.log").write_text(
        "ebbtide mode: page-locking = registered, 2 GiB\nebbtide mode: gds = compat\nebbtide mode: gds = compat\n"
    )
    (folder / "ray" / "weights.bin").write_bytes(b"x" * 100)
    (folder / "store" / "objects" / "a" / "x.log").write_text("content\n")
    (folder / "ray" / "empty.log").write_text("")
    (folder / "ray" / "link.log").symlink_to("/etc/hostname")
    return folder


def test_logs_that_end_in_trouble_come_first(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"agent-{number}.log").write_text("all is well\n")
    (tmp_path / "worker-7.err").write_text("Traceback (most recent call last):\n")
    os.utime(tmp_path / "worker-7.err", (1, 1))
    assert str(tmp_path / "worker-7.err") in tails([tmp_path])


def test_ends_of_the_logs_that_tell_something(tmp_path: Path) -> None:
    found = tails([made(tmp_path)])
    assert set(found) == {str(tmp_path / "ray" / "worker-1.err"), str(tmp_path / "ray" / "rank-0.log")}
    assert found[str(tmp_path / "ray" / "worker-1.err")].splitlines()[0] == "line 75"


def test_modes_are_found_once_each(tmp_path: Path) -> None:
    assert modes([made(tmp_path)]) == {"page-locking": ["registered, 2 GiB"], "gds": ["compat"]}


def test_the_archive_has_logs_and_no_content(tmp_path: Path) -> None:
    path = tmp_path / "logs.tar.gz"
    assert archive([made(tmp_path / "work"), tmp_path / "work"], path) == 2
    with tarfile.open(path) as packed:
        assert sorted(Path(name).name for name in packed.getnames()) == ["rank-0.log", "worker-1.err"]
