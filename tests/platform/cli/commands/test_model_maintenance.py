"""`ebbtide models verify`, `repair` and `gc`: what is wrong is named, mended, and what nobody needs goes."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from ebbtide.storage.maintenance.garbage_plan import Grace
from ebbtide.storage.names import ObjectId
from tests.builders.commands import Shared, models
from tests.builders.models import publish_cache, publish_flat
from tests.platform.storage.models.made import make_checkpoint
from tests.platform.storage.stores import store_at

FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    return Shared(tmp_path)


def flip(shared: Shared, target: object, name: str = FIRST, offset: int = 5000) -> None:
    path = shared.store / "objects" / str(target) / name
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


# ---- verify and repair


def test_what_is_whole_is_told(shared: Shared) -> None:
    shared.bring()
    done = models("verify", "Tiny-1", *shared.option)
    assert done.exit_code == 0 and done.stdout == "Tiny-1:latest: whole, 501.8 kB\n"
    assert json.loads(models("verify", "--all", *shared.option, "--json").stdout)["models"][0]["damage"] == []


def test_damage_names_file_chunk_and_remedy_and_the_remedy_works(shared: Shared) -> None:
    target = shared.bring()["object"]
    flip(shared, target)
    flip(shared, target, "config.json", 0)
    done = models("verify", "Tiny-1", *shared.option)
    size = (shared.store / "objects" / str(target) / FIRST).stat().st_size
    assert done.exit_code == 1
    assert f"Tiny-1:latest: damaged: bytes 0 to {size} of {FIRST}: not what was published" in done.stdout
    assert "of config.json" in done.stdout
    remedy = done.stdout.splitlines()[-1].removeprefix("-> ebbtide models ").split()
    assert remedy == ["repair", "Tiny-1:latest"]
    mended = models(*remedy, *shared.option)
    assert mended.exit_code == 0 and "2 places mended in config.json" in mended.stdout, mended.output
    assert models("verify", "Tiny-1", "--deep", *shared.option).exit_code == 0
    assert "nothing to repair" in models("repair", "Tiny-1", *shared.option).stdout


def test_all_models_are_verified_each_once_and_those_without_a_name_too(shared: Shared, tmp_path: Path) -> None:
    shared.bring()
    shared.bring("--name", "alias")
    make_checkpoint(shared.source, seed=1)
    second = shared.bring("--name", "second")["object"]
    models("rm", "second", *shared.option)
    flip(shared, second)
    done = models("verify", "--all", *shared.option, "--json")
    found = json.loads(done.stdout)["models"]
    assert done.exit_code == 1 and len(found) == 2
    assert [bool(one["damage"]) for one in found if one["object"] == second] == [True]
    assert found[1]["damage"][0]["file"] == FIRST and found[1]["damage"][0]["part"]["offset"] == 0
    remedy = models("verify", str(second)[:12], *shared.option).stdout.splitlines()[-1]
    assert models(*remedy.removeprefix("-> ebbtide models ").split(), *shared.option).exit_code == 0


def test_a_damaged_manifest_is_told_and_repaired_by_importing_anew(shared: Shared) -> None:
    target = shared.bring()["object"]
    (shared.store / "objects" / str(target) / "manifest.json").write_text("junk")
    done = models("verify", "Tiny-1", *shared.option)
    assert done.exit_code == 1 and "manifest" in done.stdout
    assert "DAMAGED" in models("list", *shared.option).stdout
    mended = models("repair", "Tiny-1", *shared.option)
    assert mended.exit_code == 0 and "imported anew from" in mended.stdout, mended.output
    assert models("verify", "Tiny-1", *shared.option).exit_code == 0


@pytest.mark.parametrize("words", [(), ("--all", "Tiny-1"), ("nobody",), ("../x",)])
def test_what_cannot_be_verified_is_bad_input(shared: Shared, words: tuple[str, ...]) -> None:
    shared.bring()
    assert models("verify", *words, *shared.option).exit_code == 2


def test_a_repair_without_a_good_copy_says_what_is_needed(shared: Shared, tmp_path: Path) -> None:
    flip(shared, shared.bring()["object"])
    shutil.rmtree(shared.source)
    done = models("repair", "Tiny-1", *shared.option)
    assert done.exit_code == 2 and "there is no directory" in done.stderr
    make_checkpoint(tmp_path / "again")
    mended = models("repair", "Tiny-1", "--from", tmp_path / "again", *shared.option, "--json")
    assert mended.exit_code == 0 and json.loads(mended.stdout)["files"] == [FIRST]


# ---- gc


def test_gc_says_what_would_go_and_why_and_changes_nothing(shared: Shared) -> None:
    target = str(shared.bring()["object"])
    models("rm", "Tiny-1", *shared.option)
    kept = models("gc", "--dry-run", *shared.option)
    assert kept.exit_code == 0 and kept.stdout == "0 bytes would be removed, and 0 bytes moved to the trash\n"
    done = models("gc", "--dry-run", "--grace", "0", *shared.option)
    assert f"object {target[:12]}" in done.stdout and "no ref, no holder" in done.stdout and "501.8 kB" in done.stdout
    assert (shared.store / "objects" / target).is_dir()


def test_gc_moves_to_the_trash_and_then_removes(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(shared.bring()["object"])
    make_checkpoint(shared.source, seed=1)
    shared.bring("--name", "stays")
    models("rm", "Tiny-1", *shared.option)
    first = models("gc", "--grace", "0s", *shared.option)
    assert first.exit_code == 0 and "to the trash" in first.stdout and "0 bytes removed" in first.stdout
    (trashed,) = (shared.store / "trash").iterdir()
    assert trashed.name.startswith(target)
    old_s = time.time() - 10 * Grace().trash_s
    os.utime(trashed, (old_s, old_s))
    second = json.loads(models("gc", *shared.option, "--json").stdout)
    assert second["removed_bytes"] >= 501788 and not list((shared.store / "trash").iterdir())
    assert [one["fate"] for one in second["verdicts"]] == ["keep", "remove"]
    assert [row["name"] for row in json.loads(models("list", *shared.option, "--json").stdout)["models"]] == ["stays"]


def test_gc_takes_what_was_made_of_a_model_with_the_model(shared: Shared) -> None:
    target = ObjectId(str(shared.bring()["object"]))
    store = store_at(shared.store)
    flat = publish_flat(store, target)
    models("rm", "Tiny-1", *shared.option)
    told = models("gc", "--dry-run", "--grace", "0", *shared.option).stdout
    assert (
        f"name flat/{target[:12]}...:tp1-rank0 would go: its model has no other name, and no process holds it\n" in told
    )
    assert f"object {target[:12]}" in told and f"object {flat[:12]}" in told and len(store.refs.pairs()) == 1
    done = json.loads(models("gc", "--grace", "0", *shared.option, "--json").stdout)
    assert done["names"] == [f"flat/{target}/d1:tp1-rank0"] and store.refs.pairs() == []
    assert {one["object"] for one in done["verdicts"] if one["done"]} == {target, flat}


def test_gc_takes_caches_that_nobody_used_for_a_month_or_as_long_as_one_says(shared: Shared) -> None:
    shared.bring()
    store = store_at(shared.store)
    publish_cache(store, "old", 31 * 86400.0)
    publish_cache(store, "young", 29 * 86400.0)
    assert (
        "name artefact/old:latest goes: a cache that was not used for 31 days\n" in models("gc", *shared.option).stdout
    )
    assert "artefact/young:latest" in models("gc", "--dry-run", "--unused", "28d", *shared.option).stdout
    assert [name for name, _ in store.refs.pairs("artefact/")] == ["artefact/young"]


def test_gc_takes_imports_that_were_cut_off_when_they_are_old(shared: Shared) -> None:
    shared.bring()
    work = shared.store / "incoming" / "import-0-1"
    work.mkdir()
    (work / "x").write_bytes(b"x" * 5000)
    assert models("gc", *shared.option).exit_code == 0 and work.is_dir()
    assert "incoming/import-0-1" in models("gc", "--grace", "0", *shared.option).stdout
    assert not work.exists()


def test_gc_forgets_records_of_models_that_are_gone(shared: Shared) -> None:
    target = str(shared.bring()["object"])
    shutil.rmtree(shared.store / "objects" / target)
    (record,) = (shared.store / "imports").iterdir()
    models("gc", *shared.option)
    assert record.exists(), "young: it may be about to come true"
    old_s = time.time() - 2 * Grace().object_s
    os.utime(record, (old_s, old_s))
    models("gc", *shared.option)
    assert not record.exists()


@pytest.mark.parametrize(
    ("text", "code"), [("90", 0), ("90s", 0), ("1.5h", 0), ("30min", 0), ("2d", 0), ("-1", 2), ("1y", 2), ("", 2)]
)
def test_a_grace_is_a_duration(shared: Shared, text: str, code: int) -> None:
    shared.bring()
    assert models("gc", "--dry-run", "--grace", text, *shared.option).exit_code == code


def test_what_cannot_be_removed_is_a_failure_that_names_it(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.bring()
    models("rm", "Tiny-1", *shared.option)

    def fail(*_: object) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "rename", fail)
    done = models("gc", "--grace", "0", *shared.option)
    assert done.exit_code == 1 and "cannot be removed: cannot" in done.stderr
