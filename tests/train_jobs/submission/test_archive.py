"""What is kept of a submission, and what is not."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from ebbtide_train.submission.archive import FILE, ZIP, Archive, Submission, Unkept, kept_env

GIVEN = Submission(
    job="tide",
    incarnation="abc",
    kind="script",
    entrypoint="python train.py",
    submission_id="raysubmit_1",
    runtime_env={"pip": ["einops"], "env_vars": {"MODE": "fast"}},
    metadata={"who": "me"},
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg" / "__pycache__").mkdir(parents=True)
    (folder / "pkg" / "__pycache__" / "x.pyc").write_text("stale")
    (folder / "pkg" / "mine.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(path: Path) -> list[str]:
    with ZipFile(path) as packed:
        return packed.namelist()


def test_what_was_kept_is_read_again_with_its_folder(tmp_path: Path, code: Path) -> None:
    archive = Archive(tmp_path / "shared")
    kept = archive.keep(GIVEN, code)
    assert archive.read("tide") == kept == replace(GIVEN, zip_sha256=kept.zip_sha256)
    found = archive.working_dir(kept)
    assert found is not None and names(found) == ["run.sh", "pkg/mine.py"]
    with ZipFile(found) as packed:
        assert stat.S_IMODE(packed.getinfo("run.sh").external_attr >> 16) == 0o755
    assert archive.restorable() == {"tide"}


def test_only_its_owner_can_read_it(tmp_path: Path, code: Path) -> None:
    Archive(tmp_path / "shared").keep(GIVEN, code)
    folder = tmp_path / "shared" / "jobs" / "tide"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, *folder.iterdir())}
    assert modes == {"jobs": 0o700, "tide": 0o700, FILE: 0o600, ZIP: 0o600}


def test_the_shared_directory_stays_out_of_the_folder(code: Path) -> None:
    archive = Archive(code / "shared")
    kept = archive.keep(GIVEN, code)
    archive.keep(kept, code)  # now there is something in it
    assert names(code / "shared" / "jobs" / "tide" / ZIP) == ["run.sh", "pkg/mine.py"]


def test_a_folder_that_is_too_large_is_refused_with_a_reason_and_leaves_no_bytes(tmp_path: Path, code: Path) -> None:
    (code / "data.bin").write_bytes(bytes(3 << 20))
    archive = Archive(tmp_path / "shared", zip_limit_bytes=2 << 20)
    kept = archive.keep(GIVEN, code)
    assert kept.refusal == "its working directory has more than 2 MiB; keep data outside of it"
    assert [path.name for path in (tmp_path / "shared" / "jobs" / "tide").iterdir()] == [FILE]
    assert archive.restorable() == frozenset()


def test_a_new_submission_replaces_the_old_one_whole(tmp_path: Path, code: Path) -> None:
    archive = Archive(tmp_path)
    archive.keep(GIVEN, code)
    kept = archive.keep(replace(GIVEN, incarnation="def"), None)
    assert archive.read("tide") == kept and kept.incarnation == "def"
    assert archive.working_dir(kept) is None
    assert not (tmp_path / "jobs" / "tide" / ZIP).exists()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"another"), Path.unlink])
def test_a_folder_that_is_not_the_one_of_the_submission_is_never_run(
    tmp_path: Path, code: Path, damage: Callable[[Path], object]
) -> None:
    archive = Archive(tmp_path / "shared")
    kept = archive.keep(GIVEN, code)
    damage(tmp_path / "shared" / "jobs" / "tide" / ZIP)
    with pytest.raises(Unkept, match="submit the job again by hand"):
        archive.working_dir(kept)


@pytest.mark.parametrize(
    "text", ["", "[]", json.dumps({"job": "tide"}), json.dumps({"job": "x", "incarnation": "a", "kind": "file"})]
)
def test_a_damaged_record_is_told_and_hides_no_other_job(tmp_path: Path, text: str) -> None:
    archive = Archive(tmp_path)
    archive.keep(GIVEN, None)
    archive.keep(replace(GIVEN, job="other"), None)
    (tmp_path / "jobs" / "tide" / FILE).write_text(text)
    with pytest.raises(Unkept, match="submit the job again by hand"):
        archive.read("tide")
    assert archive.restorable() == {"other"}


def test_what_was_forgotten_is_gone_and_forgetting_twice_is_nothing(tmp_path: Path, code: Path) -> None:
    archive = Archive(tmp_path / "shared")
    archive.keep(GIVEN, code)
    archive.forget("tide")
    archive.forget("tide")
    assert archive.read("tide") is None
    assert archive.restorable() == frozenset()
    assert list((tmp_path / "shared" / "jobs").iterdir()) == []


def test_nothing_was_ever_kept(tmp_path: Path) -> None:
    assert Archive(tmp_path / "none").restorable() == frozenset()
    assert Archive(tmp_path / "none").read("tide") is None


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unkept, match="cannot be a folder's name"):
        Archive(tmp_path).read("../other")


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "hf_token", "DB_PASSWORD", "AWS_SECRET_ACCESS", "BASIC_AUTH"])
def test_secrets_are_not_written_down(name: str) -> None:
    with pytest.raises(Unkept, match=f"sets {name}"):
        kept_env({"MODE": "fast", name: "x"})


def test_plain_variables_are_kept() -> None:
    assert kept_env({"MODE": "fast", "OMP_NUM_THREADS": "1"}) == {"MODE": "fast", "OMP_NUM_THREADS": "1"}


def test_a_refusal_never_replaces_what_was_kept_of_the_same_submission(tmp_path: Path, code: Path) -> None:
    archive = Archive(tmp_path / "shared")
    kept = archive.keep(GIVEN, code)
    again = replace(GIVEN, incarnation="def", entrypoint="", runtime_env={}, refusal="its folder has vanished")
    assert archive.keep(again, None) == replace(kept, incarnation="def")
    assert archive.restorable() == {"tide"}
    assert archive.working_dir(kept) is not None
    archive.keep(replace(again, submission_id="raysubmit_2"), None)
    assert archive.restorable() == frozenset(), "another submission that cannot be kept"
