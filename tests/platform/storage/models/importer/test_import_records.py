"""Records are hints: what is wrong with one never matters."""

import os
from pathlib import Path

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.models.importer.import_records import ImportRecords, imports
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.store_paths import StorePaths

ONE, TWO = "a" * 64, "b" * 64
OBJECT, OTHER = ObjectId("1" * 64), ObjectId("2" * 64)


@pytest.fixture
def records(tmp_path: Path) -> ImportRecords:
    return ImportRecords(StorePaths(tmp_path), Disk())


def test_a_record_is_read_back_and_each_has_a_token(records: ImportRecords) -> None:
    assert records.read(ONE) is None and records.list() == []
    first = records.write(ONE, "s3://größe/\udcff", OBJECT, 5.0)
    assert records.read(ONE) == first
    second = records.write(ONE, "elsewhere", OTHER, 3.0)
    assert records.read(ONE) == second and second.token != first.token
    third = records.write(TWO, "x", OBJECT, 1.0)
    assert records.list() == [third, second]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 2}', b'{"schema": 1, "fingerprint": "x"}', b"\xff", b"[" * 60_000, b"x" * 100_000],
)
def test_a_record_that_makes_no_sense_counts_as_none(records: ImportRecords, tmp_path: Path, content: bytes) -> None:
    records.write(ONE, "x", OBJECT, 1.0)
    path = imports(StorePaths(tmp_path)) / f"{ONE}.json"
    path.write_bytes(content)
    assert records.read(ONE) is None and records.list() == []
    path.write_bytes((imports(StorePaths(tmp_path)) / f"{ONE}.json").read_bytes())


def test_a_record_under_another_name_is_not_believed(records: ImportRecords, tmp_path: Path) -> None:
    records.write(ONE, "x", OBJECT, 1.0)
    folder = imports(StorePaths(tmp_path))
    os.rename(folder / f"{ONE}.json", folder / f"{TWO}.json")
    assert records.read(TWO) is None


def test_a_fingerprint_that_is_none_leads_nowhere(records: ImportRecords) -> None:
    for wrong in ("../../etc/passwd", "", "A" * 64, "a" * 63):
        with pytest.raises(Refused):
            records.read(wrong)


def test_old_records_of_objects_that_are_gone_are_forgotten(records: ImportRecords, tmp_path: Path) -> None:
    records.write(ONE, "x", OBJECT, 1.0)
    records.write(TWO, "x", OTHER, 2.0)
    made_s = (imports(StorePaths(tmp_path)) / f"{ONE}.json").stat().st_mtime
    assert records.forget([OBJECT, OTHER], made_s + 10) == 0
    assert records.forget([OBJECT], made_s - 10) == 0
    assert records.forget([OBJECT], made_s + 10) == 1
    assert [one.object for one in records.list()] == [OBJECT]


def test_a_record_of_another_version_is_not_believed(records: ImportRecords, tmp_path: Path) -> None:
    records.write(ONE, "x", OBJECT, 1.0)
    path = imports(StorePaths(tmp_path)) / f"{ONE}.json"
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 2'))
    assert records.read(ONE) is None and records.list() == []
