"""What bad input gets: refused with reason and remedy, and all is as it was, byte for byte."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.helper.criu.criu_program import Criu
from ebbtide.helper.criu.image import COMMIT, IMAGES, MANIFEST, Manifest, check_files, seal
from ebbtide.helper.errors import Refused, Undone
from ebbtide.helper.operations.image_paths import check_memory, check_room, check_way
from ebbtide.storage.files.durable_files import Disk
from tests.platform.helper.trees import Counting, Running, counting, helping

NAME = "session/a"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home").resolve()
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module")
def running(home: Path, criu: Criu) -> Iterator[Running]:
    with helping(home, criu) as one:
        yield one


@pytest.fixture(scope="module")
def parked(home: Path, running: Running) -> Iterator[Counting]:
    """A workload that is dumped to ``home/image``."""
    with counting(home) as tree:
        running.register(tree)
        running.helper.dump(NAME, home / "image")
        tree.process.wait()
        yield tree


def rewrite(image: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Commit another manifest, as a dump elsewhere would have."""
    fields = json.loads((image / MANIFEST).read_text())
    change(fields)
    seal(image, Manifest.model_validate(fields), Disk())


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def pages(image: Path) -> Path:
    return image / IMAGES / "pages-1.img"


BAD_IMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "not there": (shutil.rmtree, "there is no image"),
    "no commit": (lambda image: (image / COMMIT).unlink(), "half written"),
    "no manifest": (lambda image: (image / MANIFEST).unlink(), "half written"),
    "damaged commit": (lambda image: flip(image / COMMIT), "damaged"),
    "damaged manifest": (lambda image: flip(image / MANIFEST), "damaged"),
    "damaged pages": (lambda image: flip(pages(image)), "has other bytes"),
    "short pages": (lambda image: os.truncate(pages(image), 4096), "does not have"),
    "file missing": (lambda image: pages(image).unlink(), "missing or too many"),
    "file too many": (lambda image: (image / IMAGES / "more.img").touch(), "missing or too many"),
    "another criu": (lambda i: rewrite(i, lambda f: f["machine"].update(criu="4.0")), "made by CRIU 4.0"),  # type: ignore[attr-defined]
    "another kernel": (lambda i: rewrite(i, lambda f: f["machine"].update(kernel="Linux 5")), "on kernel Linux 5"),  # type: ignore[attr-defined]
    "another processor": (
        lambda i: rewrite(i, lambda f: f["machine"]["cpu_flags"].append("avx9")),  # type: ignore[index]
        "this processor lacks avx9",
    ),
    "no gpu driver": (
        lambda i: rewrite(i, lambda f: f["machine"].update(gpu={"driver": "CUDA 13.0", "chips": {"GPU-1": "H100"}})),  # type: ignore[attr-defined]
        "made with CUDA 13.0, and no GPU driver here.*use a node with .*CUDA 13.0 and H100",
    ),
    "another build": (
        lambda i: rewrite(i, lambda f: f["needs"]["builds"].update({"/bin/sh": "build 00"})),  # type: ignore[index]
        "/bin/sh is another build",
    ),
    "library missing": (
        lambda i: rewrite(i, lambda f: f["needs"]["builds"].update({"/lib/none.so": "build 00"})),  # type: ignore[index]
        "there is no file /lib/none.so",
    ),
    "folder missing": (
        lambda i: rewrite(i, lambda f: f["needs"].update(folders=["/nowhere"])),  # type: ignore[attr-defined]
        "there is no folder /nowhere",
    ),
    "pid taken": (
        lambda i: rewrite(i, lambda f: f["processes"][0].update(pid=os.getpid())),  # type: ignore[index]
        f"pids that processes have now: {os.getpid()}",
    ),
    "too little memory": (lambda i: rewrite(i, lambda f: f.update(own_bytes=1 << 50)), "of memory"),
    "a later version": (
        lambda i: _commit_raw(i, {**json.loads((i / MANIFEST).read_text()), "version": 2}),
        "a version that this helper does not know",
    ),
    "open to others": (lambda image: image.chmod(0o755), "others could have written"),
    "of another user": (lambda image: os.chown(image, 12345, -1), "belongs to user 12345"),
}


def _commit_raw(image: Path, fields: dict[str, object]) -> None:
    from ebbtide.helper.criu import image as module

    raw = json.dumps(fields).encode()
    (image / MANIFEST).write_bytes(raw)
    (image / COMMIT).write_bytes(module._commit(raw))


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_an_image_that_cannot_be_trusted_is_refused(home: Path, running: Running, parked: Counting, case: str) -> None:
    spoil, says = BAD_IMAGES[case]
    if case == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    image = home / "copy"
    shutil.copytree(home / "image", image)
    try:
        spoil(image)
        before = state_of(home)
        with pytest.raises(Refused, match=says) as refused:
            running.helper.revive(image)
        assert refused.value.remedy and type(refused.value) is Refused
        assert state_of(home) == before and not running.helper.state(NAME)[0].alive
    finally:
        shutil.rmtree(image, ignore_errors=True)


def state_of(home: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with inode, length and time of change; the journal among them."""
    return {
        str(path): (found.st_ino, found.st_size, found.st_mtime_ns)
        for path in sorted(home.rglob("*"))
        if (found := path.lstat())
    }


def test_an_output_file_that_is_shorter_or_gone_is_refused(home: Path, running: Running, parked: Counting) -> None:
    raw = parked.out.read_bytes()
    for change, says in ((raw[:-1], "had .* bytes and now has"), (None, "there is no file")):
        parked.out.unlink() if change is None else parked.out.write_bytes(change)
        with pytest.raises(Refused, match=says):
            running.helper.revive(home / "image")
    parked.out.write_bytes(raw)


@pytest.mark.proves("a dumped workload is not registered again")
def test_what_is_dumped_cannot_be_dumped_or_registered_again(home: Path, running: Running, parked: Counting) -> None:
    with pytest.raises(Refused, match="is dumped at"):
        running.helper.dump(NAME, home / "second")
    with pytest.raises(Refused, match="is dumped at"):
        running.helper.register(NAME, os.getpid(), 1)
    assert not (home / "second").exists()


def test_what_cannot_be_dumped_is_left_running(home: Path, running: Running) -> None:
    folder = home / "live"
    folder.mkdir(mode=0o700)
    (folder / "taken").mkdir()
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "link").symlink_to(folder)
    with counting(folder) as tree, counting(home / "open", start_new_session=False) as child:
        running.register(tree, "live")
        running.register(child, "child")
        before = state_of(home)
        for name, image, says in [
            ("nobody", folder / "image", "nobody has registered nobody"),
            ("child", folder / "image", "not the leader of a session"),
            ("live", folder / "taken", "something is at"),
            ("live", home / "none" / "image", "there is no folder"),
            ("live", home / "open" / "image", "others than user"),
            ("live", home / "link" / "image", "leads through a link"),
            ("live", Path("/proc/image"), "does not fit|others than user"),
        ]:
            with pytest.raises(Refused, match=says):
                running.helper.dump(name, image)
        changed = {path for path, seen in state_of(home).items() if before.get(path) != seen}
        assert changed <= {str(tree.out), str(child.out)}
        tree.goes_on()
        child.process.kill()
        child.process.wait()
        with pytest.raises(Refused, match="has ended"):
            running.helper.dump("child", folder / "image")


def test_a_dump_that_fails_in_the_middle_leaves_it_running(home: Path, criu: Criu) -> None:
    folder = home / "failing"
    folder.mkdir(mode=0o700)
    bad = folder / "criu"
    bad.write_text(f'#!/bin/sh\n[ "$1" = dump ] && exit 1\nexec {criu.path} "$@"\n')
    bad.chmod(0o700)
    with helping(folder, Criu(bad, criu.version)) as running, counting(folder) as tree:
        running.register(tree)
        with pytest.raises(Undone, match="it runs on"):
            running.helper.dump(NAME, folder / "image")
        tree.goes_on()
        assert {one.name for one in folder.iterdir()} == {"criu", "helper.sock", "helper.sock.state", "out"}
        assert running.helper.state(NAME)[0].standing == "live"


def test_too_little_room_is_told_in_numbers(tmp_path: Path) -> None:
    check_room(tmp_path / "image", 0)
    with pytest.raises(Refused, match=r"about \d+ bytes does not fit"):
        check_room(tmp_path / "image", 1 << 60)
    check_memory(1 << 20, "MemAvailable:  1024 kB\n")
    with pytest.raises(Refused, match="need 1048577 bytes of memory and 1048576"):
        check_memory((1 << 20) + 1, "MemAvailable:  1024 kB\n")


@pytest.mark.parametrize("path", ["/", "relative/x", "/tmp/../tmp/x"])
def test_a_path_that_is_no_place_for_an_image(path: str) -> None:
    with pytest.raises(Refused, match="not an absolute path"):
        check_way(Path(path))


def test_without_criu_images_are_refused_and_the_rest_works(folder: Path) -> None:
    with helping(folder) as running, counting(folder) as tree:
        assert running.register(tree).alive and running.helper.facts()["criu"] == ""
        for ask in (lambda: running.helper.dump(NAME, folder / "i"), lambda: running.helper.revive(folder / "i")):
            with pytest.raises(Refused, match="there can be no images here"):
                ask()
        tree.goes_on()


def test_a_whole_image_passes(home: Path, parked: Counting) -> None:
    from ebbtide.helper.criu.image import read_manifest

    check_files(home / "image", read_manifest(home / "image"))
