"""What other systems leave in the store's folders stops no command, and no command removes it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from ebbtide.cli.main import cli
from ebbtide.storage.foreign_names import is_foreign
from tests.platform.storage.checkpoints.runs import RUN, make_run, state_at

LONG_AGO_S = 1e9  # older than any grace


def file(folder: Path, name: str | bytes, content: bytes = b"\0binary") -> Path:
    path = folder / os.fsdecode(name)
    path.write_bytes(content)
    return path


def directory(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "precious").write_bytes(b"x")
    return path


def link(folder: Path, name: str, target: str) -> Path:
    path = folder / name
    path.symlink_to(target)
    return path


def pipe(folder: Path, name: str) -> Path:
    os.mkfifo(folder / name)
    return folder / name


STRAYS: dict[str, Callable[[Path], Path]] = {
    "Explorer's": lambda folder: file(folder, "Thumbs.db"),
    "Explorer's in small letters": lambda folder: file(folder, "thumbs.db"),
    "Windows'": lambda folder: file(folder, "desktop.ini"),
    "Finder's": lambda folder: file(folder, ".DS_Store"),
    "Apple's other half": lambda folder: file(folder, "._latest"),
    "Apple's other half of JSON": lambda folder: file(folder, "._x.json"),
    "of NFS": lambda folder: file(folder, ".nfs000000000123abcd00000001"),
    "an editor's": lambda folder: file(folder, "latest~"),
    "vim's": lambda folder: file(folder, ".latest.swp"),
    "not UTF-8": lambda folder: file(folder, b"caf\xe9"),
    "of two words": lambda folder: file(folder, "New Text Document.txt"),
    "like a temporary file": lambda folder: file(folder, ".somebody.tmp"),
    "lost+found": lambda folder: directory(folder, "lost+found"),
    "a snapshot's": lambda folder: directory(folder, ".snapshot"),
    "Synology's": lambda folder: directory(folder, "@eaDir"),
    "the trash of Windows": lambda folder: directory(folder, "$RECYCLE.BIN"),
    "a link to nothing": lambda folder: link(folder, "nothing", "/nowhere/at/all"),
    "a link to a folder": lambda folder: link(folder, "elsewhere", "/usr"),
    "a link to itself": lambda folder: link(folder, "loop", "loop"),
    "a pipe": lambda folder: pipe(folder, "pipe"),
}
COMMANDS = (
    "models list",
    "models list --json",
    "models verify --all",
    "models verify mine",
    "models gc --grace 0 --dry-run",
    "models gc --grace 0",
    "models gc --grace 0",
    "models import {source} --name mine",
    "models import {source} --name other",
    "models rm other",
    "models export mine {out}",
    "models repair mine",
)
CHECKPOINT_COMMANDS = (
    f"checkpoints list {RUN}",
    f"checkpoints verify {RUN}",
    f"checkpoints export {RUN} {{out}}-2",
)
# Of the store: all but the inside of an object, which is verified by its list of files.
PLACES = (
    *("store", "store/objects", "store/refs", "store/refs/mine", "store/incoming", "store/leases", "store/trash"),
    *("store/quarantine", "store/flights", "store/imports", ".", "train", f"train/{RUN}", f"train/{RUN}/e1"),
    *(f"train/{RUN}/leases", "objects/*", f"train/{RUN}/e1/step-1"),
)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    source, shared = tmp_path / "source", tmp_path / "shared"
    source.mkdir()
    shared.mkdir()
    save_file({"w": np.ones(4, np.float32)}, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    run(shared, "models", "import", str(source), "--name", "mine")
    checkpoints = make_run(shared)
    checkpoints.begin_epoch(1)
    checkpoints.save(state_at(1), epoch=1, step=1)
    (shared / "train" / RUN / "leases").mkdir(exist_ok=True)
    return shared


def run(shared: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--shared-dir", str(shared)])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


def place_in(shared: Path, place: str) -> Path:
    if place == "objects/*":
        return next((shared / "store" / "objects").iterdir())
    return shared / place


@pytest.mark.proves("strangers in the store are left alone")
@pytest.mark.parametrize("place", PLACES)
def test_what_others_left_stops_no_command_and_stays(place: str, shared: Path, tmp_path: Path) -> None:
    folder = place_in(shared, place)
    left = []
    for make in STRAYS.values():
        left.append(make(folder))
        os.utime(left[-1], (LONG_AGO_S, LONG_AGO_S), follow_symlinks=False)
    for command in CHECKPOINT_COMMANDS if "train" in place else COMMANDS:
        run(shared, *command.format(source=tmp_path / "source", out=tmp_path / "out").split())
    gone = [path.name for path in left if not os.path.lexists(path)]
    assert not gone
    assert not [path for path in left if path.is_dir() and not path.is_symlink() and not (path / "precious").exists()]


@pytest.mark.proves("what a copy of a ref names stays")
@pytest.mark.parametrize("name", ["latest.bak", "latest-old", "copy"])
def test_a_copy_of_a_ref_keeps_its_model_and_stops_nothing(name: str, shared: Path, tmp_path: Path) -> None:
    mine, objects = shared / "store" / "refs" / "mine", shared / "store" / "objects"
    (kept,) = os.listdir(objects)
    (mine / name).write_bytes((mine / "latest").read_bytes())
    save_file({"w": np.zeros(8, np.float32)}, tmp_path / "source" / "model.safetensors")
    run(shared, "models", "import", str(tmp_path / "source"), "--name", "other")
    for command in ("models list", "models verify --all", "models rm mine", "models rm other", "models gc --grace 0"):
        run(shared, *command.split())
    assert os.listdir(objects) == [kept], "a name of it may be meant, and what nothing names goes all the same"
    (mine / name).unlink()
    run(shared, "models", "gc", "--grace", "0")
    assert not list((shared / "store" / "objects").iterdir())


def test_a_folder_where_a_tag_is_expected_is_none(shared: Path) -> None:
    directory(shared / "store" / "refs" / "mine", "v2")
    for command in ("models list", "models verify --all", "models gc --grace 0"):
        run(shared, *command.split())
    assert (shared / "store" / "refs" / "mine" / "v2" / "precious").exists()


def test_verify_names_what_others_left_in_one_line(shared: Path) -> None:
    file(shared / "store" / "refs", "Thumbs.db")
    file(shared / "store" / "trash", b"caf\xe9")
    told = run(shared, "models", "verify", "--all")
    assert "not of ebbtide, and left alone" in told and "2 entries (refs/Thumbs.db, trash/caf" in told


def test_a_store_is_made_on_a_fresh_disk(tmp_path: Path) -> None:
    (tmp_path / "shared" / "store" / "lost+found").mkdir(parents=True)
    file(tmp_path / "shared" / "store", ".DS_Store")
    (tmp_path / "source").mkdir()
    save_file({"w": np.ones(4, np.float32)}, tmp_path / "source" / "model.safetensors")
    run(tmp_path / "shared", "models", "import", str(tmp_path / "source"), "--name", "mine")


@pytest.mark.proves("what other systems leave in a folder has no name of ours")
@pytest.mark.parametrize("tag", ["Thumbs.db", "desktop.ini", "lost+found", "DESKTOP.INI"])
def test_such_a_name_is_refused(tag: str, shared: Path, tmp_path: Path) -> None:
    words = ["models", "import", str(tmp_path / "source"), "--name", "mine", "--tag", tag, "--shared-dir", str(shared)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "other systems put files of that name" in done.output
    assert is_foreign(tag)
    assert not is_foreign("latest")
