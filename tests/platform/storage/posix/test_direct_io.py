"""What the kernel reports about direct I/O, and what is made of it."""

import os
from pathlib import Path

import pytest

from ebbtide.storage.files import libc
from ebbtide.storage.posix.direct_io import LEAST_ALIGNMENT_BYTES, direct_io


@pytest.mark.parametrize("reported", [None, (4, 512), (512, 512), (4096, 4096), (4, 4)])
def test_nothing_less_than_a_page_is_asked_for(reported: tuple[int, int] | None) -> None:
    assert direct_io(reported).alignment == LEAST_ALIGNMENT_BYTES
    assert direct_io(reported).why_not == ""


@pytest.mark.parametrize("reported", [(512, 1 << 16), (1 << 16, 512)])
def test_more_is_asked_for_where_the_kernel_says_so(reported: tuple[int, int]) -> None:
    assert direct_io(reported).alignment == 1 << 16


@pytest.mark.parametrize("reported", [(0, 0), (0, 512), (512, 0)])
def test_zero_means_that_it_is_refused(reported: tuple[int, int]) -> None:
    assert "O_DIRECT" in direct_io(reported).why_not


@pytest.mark.parametrize("reported", [(512, 12288), (512, 1 << 25)])
def test_what_chunks_cannot_have_is_not_tried(reported: tuple[int, int]) -> None:
    assert "alignment of" in direct_io(reported).why_not


def test_chunks_smaller_than_the_alignment_are_not_read_directly() -> None:
    assert "alignment of 65536" in direct_io((512, 1 << 16), 4096).why_not


def test_what_the_kernel_reports_is_enough_for_a_direct_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * LEAST_ALIGNMENT_BYTES)
    fd = os.open(path, os.O_RDONLY)
    reported = libc.direct_io_alignment(fd)
    os.close(fd)
    if reported is None or 0 in reported:
        pytest.skip("nothing is reported for this filesystem")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    address = libc.map_memory(2 * LEAST_ALIGNMENT_BYTES)
    assert address % direct_io(reported).alignment == 0
    os.close(fd)
    libc.unmap_memory(address, 2 * LEAST_ALIGNMENT_BYTES)


def test_a_closed_descriptor_tells_nothing() -> None:
    assert libc.direct_io_alignment(-1) is None
