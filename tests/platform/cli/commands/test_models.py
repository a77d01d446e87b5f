"""`ebbtide models`: bringing models in, listing, exporting and removing them, for people and for programs."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ebbtide.storage.models.importer.import_records import flights
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.store_paths import StorePaths
from tests.builders.commands import Shared, models
from tests.platform.storage.models.made import assert_same, make_checkpoint
from tests.platform.storage.stores import store_at

ROOT = Path(__file__).parents[4]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    return Shared(tmp_path)


# ---- import


def test_people_get_one_line_and_the_same_again_says_that_nothing_was_copied(shared: Shared) -> None:
    first = models("import", shared.source, *shared.option)
    assert first.exit_code == 0, first.output
    (line,) = first.stdout.splitlines()
    assert line.startswith("Tiny-1:latest: imported; object ") and "12 tensors" in line and "copied 501.8 kB" in line
    again = models("import", shared.source, *shared.option)
    assert again.exit_code == 0 and "imported already: nothing was copied" in again.stdout
    other = models("import", shared.source, "--name", "org/x", "--tag", "v1", *shared.option)
    assert "org/x:v1: imported already" in other.stdout and "name is new" in other.stdout


def test_programs_get_one_object(shared: Shared) -> None:
    found = shared.bring("--name", "org/x")
    assert found["how"] == "copied" and found["ref"] == "org/x:latest" and found["num_tensors"] == 12
    assert found["copied_bytes"] == found["size_bytes"] and found["saved_bytes"] == 0 and found["notes"] == []
    assert shared.bring("--name", "org/x")["how"] == "known"


def test_progress_is_on_stderr_in_lines(shared: Shared) -> None:
    done = models("import", shared.source, *shared.option)
    assert "copying: " in done.stderr and " of 501.8 kB (" in done.stderr and "\x1b" not in done.stderr
    assert models("import", shared.source, *shared.option, "--json").stderr == ""


def test_notes_are_warnings(shared: Shared) -> None:
    (shared.source / "modeling.py").write_text("x = 1")
    done = models("import", shared.source, *shared.option)
    assert done.exit_code == 0 and "ebbtide: left out: modeling.py (code is never run" in done.stderr


@pytest.mark.parametrize(
    ("source", "more", "why"),
    [
        ("/nowhere", (), "there is no directory /nowhere"),
        ("s3://bucket/x", (), "pip install s3fs"),
        ("gs://user:hunter2@bucket/x", (), "pip install gcsfs"),
        ("nonsense://x", (), "Protocol not known"),
        ("", (), "names no directory"),
        (None, ("--name", "../escape"), "cannot be used"),
        (None, ("--name", "/etc/passwd"), "absolute"),
        (None, ("--name", "größe"), "cannot be used"),
        (None, ("--name", "train/x"), "kept for other things"),
        (None, ("--tag", "a/b"), "cannot be used"),
        (None, ("--tag", ".."), "cannot be used"),
    ],
)
def test_what_cannot_be_imported_is_bad_input_in_one_sentence(
    shared: Shared, source: str | None, more: tuple[str, ...], why: str
) -> None:
    done = models("import", shared.source if source is None else source, *more, *shared.option)
    assert done.exit_code == 2 and why in done.stderr and "hunter2" not in done.output
    assert "Traceback" not in done.output and done.stdout == ""
    assert not list(shared.store.glob("objects/*")) and not list(shared.store.glob("refs/*"))


def test_a_pickle_is_refused_with_what_to_do(shared: Shared) -> None:
    for path in shared.source.glob("*.safetensors*"):
        path.unlink()
    (shared.source / "pytorch_model.bin").write_bytes(b"\x80\x04x")
    done = models("import", shared.source, *shared.option)
    assert done.exit_code == 2 and "save_file" in done.stderr and "weights_only=True" in done.stderr


def test_a_full_disk_is_a_failure(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def full(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[4] = 1  # free blocks for us
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    done = models("import", shared.source, *shared.option)
    assert done.exit_code == 1 and "no room for" in done.stderr and "are missing" in done.stderr


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ebbtide.cli", "models", *map(str, arguments)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_import_says_that_it_can_go_on_and_does(shared: Shared, number: signal.Signals) -> None:
    make_checkpoint(shared.source, layers=40)
    process = subprocess.Popen(
        program("import", shared.source, *shared.option), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    incoming = StorePaths(shared.store).incoming
    while process.poll() is None and not (incoming.is_dir() and any(incoming.iterdir())):
        pass
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
    if process.returncode:
        assert process.returncode == 1 and "the same command goes on with it" in errors and "Traceback" not in errors
    assert shared.bring()["how"] in ("copied", "known")


def test_a_terminal_gets_a_bar_with_rate_and_time(shared: Shared) -> None:
    master, slave = pty.openpty()
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:
                return
            if not part:
                return
            shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    done = subprocess.run(
        program("import", shared.source, *shared.option), stdout=subprocess.PIPE, stderr=slave, env=environ, check=False
    )
    os.close(slave)
    reader.join(20)
    os.close(master)
    text = shown.decode()
    assert done.returncode == 0 and b"imported" in done.stdout
    assert "501.8/501.8 kB" in text and "━" in text and "\x1b[" in text


# ---- list


def test_the_list_is_a_table(shared: Shared) -> None:
    shared.bring()
    shared.bring("--name", "org/x", "--tag", "v1")
    done = models("list", *shared.option)
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head[:5] == ["NAME", "TAG", "OBJECT", "SIZE", "TENSORS"]
    assert [row[:2] for row in rows] == [["Tiny-1", "latest"], ["org/x", "v1"]]
    assert rows[0][3:7] == ["501.8", "kB", "12", "F32"] and "also org/x:v1" in done.stdout
    found = json.loads(models("list", *shared.option, "--json").stdout)["models"]
    assert [row["name"] for row in found] == ["Tiny-1", "org/x"] and found[0]["num_tensors"] == 12


def test_without_models_there_is_a_hint(shared: Shared) -> None:
    done = models("list", *shared.option)
    assert done.exit_code == 2 and "ebbtide models import SOURCE" in done.stderr
    assert not shared.store.exists(), "looking makes no store"


# ---- export


def test_an_export_is_told_and_never_overwrites(shared: Shared, tmp_path: Path) -> None:
    target = shared.bring()["object"]
    done = models("export", "Tiny-1", tmp_path / "out", *shared.option)
    assert done.exit_code == 0 and done.stdout.startswith("Tiny-1:latest: 5 files, 501.8 kB written to ")
    found: dict[str, NDArray[np.generic]] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        found |= load_file(path)
    assert_same(found, shared.arrays)
    again = models("export", "Tiny-1", tmp_path / "out", *shared.option)
    assert again.exit_code == 2 and "nothing is overwritten" in again.stderr
    answer = json.loads(models("export", target, tmp_path / "more", *shared.option, "--json").stdout)
    assert answer["object"] == target and answer["written_bytes"] == 501788


def test_a_damaged_model_is_not_exported_and_the_remedy_is_told(shared: Shared, tmp_path: Path) -> None:
    target = shared.bring()["object"]
    path = shared.store / "objects" / str(target) / "model-00001-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    done = models("export", "Tiny-1", tmp_path / "out", *shared.option)
    assert done.exit_code == 1 and "-> ebbtide models repair Tiny-1" in done.stderr


# ---- rm


def test_rm_removes_the_name_and_says_when_the_rest_goes(shared: Shared) -> None:
    target = str(shared.bring()["object"])
    shared.bring("--name", "other")
    done = models("rm", "Tiny-1", *shared.option)
    assert done.exit_code == 0 and f"object {target[:12]} stays: other:latest names it" in done.stdout
    last = models("rm", "other:latest", *shared.option)
    assert "`ebbtide models gc` takes object" in last.stdout and "1 h old" in last.stdout
    assert (shared.store / "objects" / target).is_dir()
    gone = models("rm", "other", *shared.option)
    assert gone.exit_code == 2 and "there is no other:latest" in gone.stderr


@pytest.mark.parametrize("name", ["train/run", "../x", "", "x:", "nobody"])
def test_rm_of_what_is_no_models_name_is_bad_input(shared: Shared, name: str) -> None:
    shared.bring()
    done = models("rm", name, *shared.option, "--json")
    assert done.exit_code == 2 and done.stdout == ""
    assert len(json.loads(models("list", *shared.option, "--json").stdout)["models"]) == 1


def test_rm_takes_no_checkpoint_of_a_training_also_one_that_leads_nowhere(shared: Shared) -> None:
    shared.bring()
    store_at(shared.store).refs.write("train/run", "step-1", ObjectId("1" * 64))
    assert models("rm", "train/run:step-1", *shared.option).exit_code == 2
    assert (shared.store / "refs" / "train%2Frun" / "step-1").exists()


def test_rm_of_a_damaged_name_works(shared: Shared) -> None:
    shared.bring()
    (shared.store / "refs" / "Tiny-1" / "latest").write_text("junk")
    done = models("rm", "Tiny-1", *shared.option)
    assert done.exit_code == 0 and "led to no model" in done.stdout


def test_the_claims_of_imports_stay_small(shared: Shared) -> None:
    for _ in range(3):
        shared.bring()
    assert len(list(flights(StorePaths(shared.store)).iterdir())) == 1
