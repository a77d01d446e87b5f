"""Regions: what counts after a kill at any moment, and what never does."""

import itertools
import mmap
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.snapshot.errors import HostMemoryShort, RegionBusy, RegionDamaged, RegionMisused
from ebbtide.snapshot.regions import header as header_module
from ebbtide.snapshot.regions import layout, pages, region_file
from ebbtide.snapshot.regions import region as region_module
from ebbtide.snapshot.regions import region_view as look_module
from ebbtide.snapshot.regions.header import HEADER_BYTES, SLOT_BYTES, Header, encode, newest, slot_offset
from ebbtide.snapshot.regions.layout import least_bytes, round_up
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import EDGES, RegionKey, RegionState
from ebbtide.snapshot.regions.region_takeover import read_region
from ebbtide.snapshot.regions.region_view import look

KEY = RegionKey("job", 3, 0)
SIZE = 40_000
WITHOUT_NOTE = least_bytes(round_up(SIZE))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return create_region(tmp_path, KEY, SIZE)


def filled(path: Path, value: int = 7, note: bytes = b"note") -> Region:
    region = Region.open(path)
    region.begin()
    region.bytes.fill_(value)
    region.seal(note)
    return region


@pytest.mark.proves(
    "a lock that another process has is no error, and no lock",
    "a region is borrowed while its borrower has the lock",
    "a region whose borrower lives is not read",
    "of two headers the later counts",
    "what a reader writes into a region is seen by no other",
)
def test_what_was_sealed_is_there_for_others_once_the_borrower_has_gone(path: Path) -> None:
    region = filled(path)
    seen = look(path)
    assert (seen.key, seen.state, seen.note, seen.borrower_lives) == (KEY, RegionState.FULL, b"note", True)
    with pytest.raises(RegionBusy):
        read_region(path)
    with pytest.raises(RegionBusy):
        Region.open(path)
    region.hash_payload()
    region.close()
    found = read_region(path)
    assert found.verified and found.note == b"note" and bool((found.bytes == 7).all())
    assert not look(path).borrower_lives


@pytest.mark.proves("a region that is not full is not read")
def test_what_was_begun_or_cleared_counts_no_more(path: Path) -> None:
    region = filled(path)
    region.hash_payload()
    region.begin()
    assert look(path).state is RegionState.FILLING and look(path).note is None
    region.seal(b"")
    assert not look(path).hashed, "those were of what was there before"
    region.clear()
    region.close()
    with pytest.raises(RegionDamaged, match="EMPTY, and nothing in it counts"):
        read_region(path)


@pytest.mark.proves("into FULL leads FILLING alone")
def test_nothing_is_sealed_that_was_not_begun(path: Path) -> None:
    region = Region.open(path)
    with pytest.raises(RegionMisused, match="EMPTY cannot become FULL"):
        region.seal(b"")
    assert RegionState.FULL not in EDGES[RegionState.EMPTY]


def test_what_counts_is_not_sealed_again_and_its_note_stays(path: Path) -> None:
    region = filled(path, note=b"first")
    with pytest.raises(RegionMisused, match="FULL cannot become FULL"):
        region.seal(b"other")
    region.close()
    assert read_region(path).note == b"first"
    for use in (region.begin, region.clear, lambda: region.seal(b"")):
        with pytest.raises(RegionMisused, match="was closed"):
            use()
    region.hash_payload()  # a thread that comes too late
    region.close()


def test_hashes_of_a_payload_that_was_begun_anew_meanwhile_are_not_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = filled(path)
    real = xxhash.xxh3_64_intdigest

    def meanwhile(data: bytes) -> int:
        monkeypatch.setattr(xxhash, "xxh3_64_intdigest", real)
        region.begin()
        region.bytes.fill_(8)
        region.seal(b"second")
        return int(real(data))

    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", meanwhile)
    region.hash_payload()
    region.close()
    found = read_region(path)
    assert not found.verified and bool((found.bytes == 8).all())


@pytest.mark.proves("a payload is compared with its hashes where these were recorded")
@pytest.mark.parametrize("at", [HEADER_BYTES, HEADER_BYTES + SIZE - 1])
def test_a_damaged_payload_or_note_is_never_used(path: Path, at: int) -> None:
    region = filled(path)
    region.hash_payload()
    region.close()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x55")
    with pytest.raises(RegionDamaged, match="are not what was put there"):
        read_region(path)


@pytest.mark.proves("a damaged note is none")
def test_a_damaged_note_counts_for_nothing(path: Path) -> None:
    filled(path, note=b"where each tensor lies").close()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"where each", b"where EACH"))
    assert look(path).note is None
    with pytest.raises(RegionDamaged):
        read_region(path)


@pytest.mark.proves(
    "a region that was cut off is refused",
    "a region whose note was cut off is refused",
    "half a header is none",
    "without a header a region is damaged",
)
@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES, HEADER_BYTES + SIZE, WITHOUT_NOTE + 2])
def test_a_file_that_was_cut_off_is_refused(path: Path, size: int) -> None:
    filled(path).close()
    os.truncate(path, size)
    for use in (look, read_region, Region.open):
        with pytest.raises(RegionDamaged):
            use(path)


@pytest.mark.proves("only a file is a region")
def test_what_is_no_region_is_refused_and_no_link_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "garbage").write_bytes(os.urandom(3 * HEADER_BYTES))
    os.mkfifo(tmp_path / "fifo")
    for use in (look, read_region):
        with pytest.raises(OSError, match="symbolic"):
            use(tmp_path / "link")
        with pytest.raises(RegionDamaged):
            use(tmp_path / "garbage")
        with pytest.raises(RegionDamaged, match="not a file of this user"):
            use(tmp_path / "fifo")


@pytest.mark.proves("another user's file is no region of ours")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_no_region_of_ours(path: Path) -> None:
    os.chown(path, 65534, -1)
    with pytest.raises(RegionDamaged, match="not a file of this user"):
        look(path)


@pytest.mark.proves("a read that fails lets go of its region")
def test_a_use_that_fails_keeps_nobody_out(path: Path) -> None:
    raw = path.read_bytes()
    with pytest.raises(RegionDamaged):
        read_region(path)  # it is empty
    Region.open(path).close()
    path.write_bytes(b"cut off")
    with pytest.raises(RegionDamaged):
        Region.open(path)
    path.write_bytes(raw)
    Region.open(path).close()


@pytest.mark.proves(
    "a region that cannot be made leaves nothing behind",
    "memory is taken before a region has its name",
    "memory that a kernel does not populate is taken in another way",
    "want of room is told as such, with a remedy",
)
def test_memory_that_is_not_there_is_refused_when_it_is_made_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages, "_populate", lambda *_: False)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HostMemoryShort, match=r"no room for 40960 bytes.*pool\.host_memory_per_node"):
        create_region(tmp_path, KEY, SIZE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proves("what a killed maker left is in the way of no other")
def test_what_a_killed_maker_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "job.3.0.making").write_bytes(b"half of it")
    assert look(create_region(tmp_path, KEY, SIZE)).state is RegionState.EMPTY


@pytest.mark.proves("an error that is no want of room is told as it is")
def test_what_goes_wrong_otherwise_is_not_taken_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pages, "take", broken)
    with pytest.raises(OSError, match="Input/output"):
        create_region(tmp_path, KEY, SIZE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proves("a job's name hides no file", "a job's name leads to no other folder")
@pytest.mark.parametrize("name", ["../job", "a/job", ".job"])
def test_a_name_leads_nowhere_else_and_hides_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a file's name"):
        create_region(tmp_path, RegionKey(name, 1, 0), SIZE)


def test_a_note_for_which_there_is_no_memory_counts_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    region = Region.open(path)
    region.begin()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        region.seal(b"note")
    assert look(path).state is RegionState.FILLING
    region.clear()


def test_hashes_are_there_before_it_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region, writes = filled(path), itertools.count()

    def dies(fd: int, data: bytes, at: int) -> None:
        if next(writes) == 1:
            raise OSError(28, "No space left on device")
        region_file.write(fd, data, at)

    monkeypatch.setattr(region_module, "write", dies)
    with pytest.raises(OSError, match="No space"):
        region.hash_payload()
    assert not look(path).hashed
    region.close()
    assert not read_region(path).verified


@pytest.mark.proves("every chunk of a payload is compared")
def test_each_chunk_has_its_hash(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES", 4096)
    region = Region.open(create_region(path.parent, RegionKey("job", 3, 1), SIZE))
    region.begin()
    region.bytes.copy_(torch.arange(region.size_bytes) % 251)
    region.seal(b"")
    region.hash_payload()
    region.close()
    assert read_region(region.path).verified
    with region.path.open("r+b") as file:
        file.seek(HEADER_BYTES + 7 * 4096)
        file.write(b"\xff")
    with pytest.raises(RegionDamaged, match="bytes 28672 to 32768 are not"):
        read_region(region.path)


def test_a_borrower_that_dies_while_somebody_looks_is_said_to_live(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it still wrote may not be what was read."""
    region = Region.open(path)
    region.begin()
    read_header = region_file.read_header

    def dies(fd: int, path: Path) -> Header:
        found = read_header(fd, path)
        region.seal(b"the end")
        region.close()
        return found

    monkeypatch.setattr(look_module, "read_header", dies)
    seen = look(path)
    assert (seen.state, seen.borrower_lives) == (RegionState.FILLING, True)


@pytest.mark.proves("pages are mapped before they are needed")
def test_memory_is_taken_and_mapped_whole_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is asked for all of it keeps the process's other mappings waiting for seconds."""
    asked: list[tuple[int, int]] = []

    def populate(_mapped: mmap.mmap, at: int, size: int) -> bool:
        asked.append((at, size))
        return True

    class Mapped(mmap.mmap):
        def __getitem__(self, at: object) -> NoReturn:
            pytest.fail(f"the kernel maps it, and yet {at} is read")

    monkeypatch.setattr(pages, "_populate", populate)
    fd = os.open(tmp_path / "sparse", os.O_RDWR | os.O_CREAT)
    mib = 1 << 20
    pages.take(fd, 150 * mib)
    assert asked == [(0, 64 * mib), (64 * mib, 64 * mib), (128 * mib, 22 * mib)]
    asked.clear()
    with Mapped(fd, 150 * mib) as mapped:
        pages.attach(mapped)
    os.close(fd)
    assert asked == [(0, 64 * mib), (64 * mib, 64 * mib), (128 * mib, 22 * mib)]


@pytest.mark.proves("a write that takes a part goes on")
def test_a_write_that_takes_a_part_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    region_file.write(fd, b"0123456789", 2)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"\0\0" + b"0123456789"


ON_A_SMALL_TMPFS = """
import os, sys
from pathlib import Path
from ebbtide.snapshot.errors import HostMemoryShort
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import RegionKey
folder = Path(sys.argv[1])
create_region(folder, RegionKey("a", 1, 0), 600_000)
try:
    create_region(folder, RegionKey("a", 1, 1), 600_000)
except HostMemoryShort as error:
    print(error, os.listdir(folder))
assert "torch" not in sys.modules, "who lends memory is a small process"
"""


def test_a_tmpfs_that_is_full_is_an_error_and_no_signal(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}'
    found = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, ON_A_SMALL_TMPFS], capture_output=True, text=True
    )
    if "mount:" in found.stderr or "unshare:" in found.stderr:
        pytest.skip(f"this machine lets nobody mount a tmpfs: {found.stderr}")
    assert found.returncode == 0, found.stderr
    assert "has no room for 602112 bytes (No space left on device)" in found.stdout
    assert found.stdout.endswith("['a.1.0.region']\n")


def test_all_memory_is_there_when_it_was_made_also_on_an_older_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, works in enumerate((True, False)):
        if not works:
            monkeypatch.setattr(pages, "_populate", lambda *_: False)
        monkeypatch.setattr(pages, "PIECE_BYTES", 5 << 20)  # so that the last piece is a small one
        path = create_region(tmp_path, RegionKey("job", 3, rank), 12 << 20)
        assert path.stat().st_blocks * 512 >= 12 << 20
        assert not Region.open(path).bytes.any()


headers = st.builds(
    Header,
    st.integers(0, 2**63),
    st.builds(RegionKey, st.text(max_size=100), st.integers(0, 2**40), st.integers(0, 10_000)),
    st.sampled_from(RegionState),
    st.integers(0, 2**50),
    st.integers(0, 2**40),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)


@pytest.mark.proves("a header with another hash is none")
@settings(deadline=None)
@given(headers, headers, st.integers(0, SLOT_BYTES))
def test_a_header_that_was_torn_anywhere_leaves_the_one_before(before: Header, after: Header, torn: int) -> None:
    after = replace(after, number=before.number + 1)
    raw = bytearray(HEADER_BYTES)
    at = slot_offset(before.number)
    raw[at : at + SLOT_BYTES] = encode(before)
    at = slot_offset(after.number)
    raw[at : at + torn] = encode(after)[:torn]
    found = newest(bytes(raw), "here")
    whole = bytes(raw[at : at + SLOT_BYTES]) == encode(after)
    assert found == (after if whole else before)


@settings(deadline=None)
@given(st.binary(max_size=2 * HEADER_BYTES))
def test_no_bytes_crash_the_reader_of_headers(raw: bytes) -> None:
    with pytest.raises(RegionDamaged):
        newest(raw, "here")


@pytest.mark.proves("a header whose key makes no sense is none", "a header with another magic is none")
@pytest.mark.parametrize(("at", "raw"), [(0, b"ebbregn9"), (16, b"\x63"), (58, b"?")])
def test_a_header_that_makes_no_sense_is_none_though_its_hash_fits(at: int, raw: bytes) -> None:
    """Another magic, another state, a key that is no JSON: another version may have written it."""
    slot = bytearray(encode(Header(5, KEY, RegionState.FULL, SIZE)))
    assert newest(bytes(slot) + bytes(SLOT_BYTES), "here").number == 5
    slot[at : at + len(raw)] = raw
    slot[-8:] = xxhash.xxh3_64_intdigest(bytes(slot[:-8])).to_bytes(8, "little")
    with pytest.raises(RegionDamaged, match="no valid header"):
        newest(bytes(slot) + bytes(SLOT_BYTES), "here")


EDGES_OF_USE = ("opened", "begun", "half", "written", "sealed", "hashed", "begun again", "cleared")
COUNTS = {"sealed", "hashed"}


def use_and_die(path: Path, edge: str) -> None:
    def at(name: str) -> None:
        if name == edge:
            os.kill(os.getpid(), signal.SIGKILL)

    region = Region.open(path)
    payload = region.bytes.numpy()  # in a forked child torch's own threads are gone, and waited for
    at("opened")
    region.begin()
    at("begun")
    payload[:100] = 9
    at("half")
    payload[:] = 9
    at("written")
    region.seal(b"nine")
    at("sealed")
    region.hash_payload()
    at("hashed")
    region.begin()
    at("begun again")
    region.seal(b"again")
    region.clear()
    at("cleared")


@pytest.mark.proves("a reader lets go of a region with its last tensor")
@pytest.mark.parametrize("edge", EDGES_OF_USE)
def test_a_borrower_killed_at_any_edge_leaves_all_or_nothing(path: Path, edge: str) -> None:
    child = os.fork()
    if child == 0:
        use_and_die(path, edge)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    seen = look(path)
    assert not seen.borrower_lives
    assert (seen.state is RegionState.FULL) == (edge in COUNTS)
    if edge in COUNTS:
        found = read_region(path)
        assert found.note == b"nine" and bool((found.bytes == 9).all()) and found.verified == (edge == "hashed")
        del found  # as long as it is in use, nobody can borrow the region
    again = Region.open(path)  # and it can be used again
    again.begin()
    again.bytes.copy_(torch.arange(again.size_bytes) % 251)
    again.seal(b"again")


@pytest.mark.proves("a job's name that fits no header is refused")
def test_the_key_of_a_file_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(Header(0, RegionKey("x" * header_module.KEY_BYTES_MAX, 1, 0), RegionState.EMPTY, 1))
