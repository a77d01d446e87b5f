"""What the pool's file allows is found in the shared directory by whoever uses it; what makes no sense stops nobody."""

import logging
import re
from pathlib import Path

import pytest

from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.sections.storage_section import CHUNK_BYTES, StorageSection
from ebbtide.storage.errors import TransferFailed
from ebbtide.storage.objects.store_limits import LIMITS, Budget, Limits, leave_limits, limits_of
from ebbtide.storage.transport import transport

FILE = """
pool:
  name: p
  shared_dir: .
  storage: {models_max: 1 TB, checkpoints_max_per_job: 64 GiB, keep_free: 2 GiB, bytes_per_s_per_node: 5 GB}
"""


def test_a_file_in_force_is_found_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    assert limits_of(tmp_path) == limits_of(tmp_path / "not" / "there") == Limits()
    assert Limits() == Limits.of(StorageSection()), "without a file as with one that says nothing"
    leave_limits(tmp_path, load_text(FILE, path=tmp_path / "pool.yaml").config.pool.storage)
    assert limits_of(tmp_path) == Limits(Budget(10**12, 2 << 30), Budget(64 << 30, 2 << 30), 5 * 10**9)
    assert (tmp_path / LIMITS).stat().st_mode & 0o077 == 0
    leave_limits(tmp_path, StorageSection())
    assert limits_of(tmp_path) == Limits()
    assert [one.name for one in tmp_path.iterdir()] == [LIMITS]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models_max": -1}', '{"of_a_newer_version": 1}', "\udcff"])
def test_what_makes_no_sense_is_told_and_counts_as_none(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LIMITS).write_bytes(text.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert limits_of(tmp_path) == Limits()
    assert str(tmp_path / LIMITS) in caplog.text and "ebbtide up" in caplog.text


def test_what_cannot_be_told_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LIMITS).mkdir()
    with pytest.raises(TransferFailed, match=re.escape(f"cannot read {tmp_path / LIMITS}")):
        limits_of(tmp_path)
    with pytest.raises(TransferFailed):
        leave_limits(tmp_path / "nowhere", StorageSection())


def test_the_least_rate_is_one_chunk_a_second() -> None:
    assert transport.CHUNK_BYTES == CHUNK_BYTES
    assert StorageSection(bytes_per_s_per_node=CHUNK_BYTES).bytes_per_s_per_node == CHUNK_BYTES
