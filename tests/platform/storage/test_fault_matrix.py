"""Whatever a filesystem does wrong, in every way of reading and writing: right bytes, or one error that says where.

The table is printed. A cell whose fault did not happen counts as broken, and so does one that nobody thought about.
"""

from collections.abc import Callable
from errno import EACCES, EAGAIN, EDQUOT, EINTR, EINVAL, EIO, ENOSPC, EOPNOTSUPP, EROFS, ESTALE
from pathlib import Path

import pytest

from tests.builders.store import evicts
from tests.platform.storage.shim.faults import NOT_THERE, RIGHT, Fault, Row, build, run, table
from tests.turns import SHORT_AND_WHOLE, every, said

READS = ("read cold", "read cached", "read in place")
COLUMNS = (*READS, "write")
PROGRAM = Path(__file__).parent / "shim" / "transport_cells.py"
# A call that hangs does so for much longer than the transfer may take, and than a busy machine needs to notice.
DEADLINE_S, HANG_MS, IN_TIME_S = 1.0, 10_000, 8.0
ALWAYS = 0
LOST = "sync: EIO once, all lost"


def reading(name: str, expected: str, *faults: Fault, deadline_s: float = 60, **other: str) -> Row:
    """A row about reading only; ``cached`` where that column differs."""
    columns = dict.fromkeys(READS, expected) | {"write": NOT_THERE}
    return Row(name, faults, columns | {f"read {key}": value for key, value in other.items()}, deadline_s)


def writing(name: str, expected: str, *faults: Fault, deadline_s: float = 60) -> Row:
    """A row about writing only."""
    return Row(name, faults, dict.fromkeys(READS, NOT_THERE) | {"write": expected}, deadline_s)


def both(name: str, expected: str, *faults: Fault, deadline_s: float = 60, **other: str) -> Row:
    """A row about all columns."""
    return Row(name, faults, dict.fromkeys(COLUMNS, expected) | {f"read {k}": v for k, v in other.items()}, deadline_s)


def errno(op: str, code: int, *, nth: int = 1, times: int = 1) -> Fault:
    """``op`` fails."""
    return Fault(op, "errno", code, nth, times)


def hang(op: str, nth: int = 1) -> Fault:
    """``op`` does not come back in time."""
    return Fault(op, "hang", HANG_MS, nth, 1)


OPENS = [
    both("open: EINTR", RIGHT, errno("open", EINTR, times=2)),
    both("open: ESTALE once", RIGHT, errno("open", ESTALE)),
    both("open: ESTALE always", "TransferFailed ESTALE", errno("open", ESTALE, times=ALWAYS)),
    both("open: EIO once", RIGHT, errno("open", EIO)),
    both("open: EIO always", "TransferFailed EIO", errno("open", EIO, times=ALWAYS)),
    both("open: EACCES", "TransferFailed EACCES", errno("open", EACCES)),
    both("open: hangs", "TransferTimeout ETIMEDOUT", hang("open"), deadline_s=DEADLINE_S),
    both("O_DIRECT refused at open", RIGHT, errno("open.direct", EINVAL, times=ALWAYS), cached=NOT_THERE),
    both("O_DIRECT open: EIO always", "TransferFailed EIO", errno("open.direct", EIO, times=ALWAYS), cached=NOT_THERE),
    both("O_DIRECT open: hangs", "TransferTimeout ETIMEDOUT", hang("open.direct"), deadline_s=1, cached=NOT_THERE),
]
MOVES = [
    row
    for kind, op in ((reading, "read"), (writing, "write"))
    for row in (
        kind(f"{op}: short, whole pages", RIGHT, Fault(op, "short", times=ALWAYS)),
        kind(f"{op}: short, odd", RIGHT, Fault(op, "odd", times=ALWAYS)),
        kind(f"{op}: short once, odd", RIGHT, Fault(op, "odd", nth=2)),
        kind(f"{op}: EINTR", RIGHT, errno(op, EINTR, times=3)),
        kind(f"{op}: EAGAIN", RIGHT, errno(op, EAGAIN, times=3)),
        kind(f"{op}: EAGAIN always", "TransferTimeout ETIMEDOUT", errno(op, EAGAIN, times=ALWAYS), deadline_s=1),
        kind(f"{op}: EIO once", RIGHT, errno(op, EIO, nth=2)),
        kind(f"{op}: EIO always", "TransferFailed EIO", errno(op, EIO, times=ALWAYS)),
        kind(f"{op}: EIO always, later", "TransferFailed EIO", errno(op, EIO, nth=3, times=ALWAYS)),
        kind(f"{op}: hangs", "TransferTimeout ETIMEDOUT", hang(op, nth=2), deadline_s=DEADLINE_S),
    )
]
READ_ROWS = [
    reading("read: ESTALE once", RIGHT, errno("read", ESTALE, nth=2)),
    reading("read: ESTALE always", "TransferFailed ESTALE", errno("read", ESTALE, times=ALWAYS)),
    reading("read: 0 bytes before the end", "FileTruncated ENODATA", Fault("read", "zero", nth=2)),
    reading("read: truncated after open, odd", "FileTruncated ENODATA", Fault("read", "cut", 1_050_001)),
    reading("read: truncated after open, aligned", "FileTruncated ENODATA", Fault("read", "cut", 1 << 20)),
    reading("O_DIRECT refused at read", RIGHT, errno("read.direct", EINVAL, times=ALWAYS), cached=NOT_THERE),
    reading("O_DIRECT refused at a later read", RIGHT, errno("read.direct", EINVAL, nth=2), cached=NOT_THERE),
    reading("close after reading: EIO", RIGHT, errno("close", EIO, times=ALWAYS)),
    reading("close after reading: hangs", "TransferTimeout ETIMEDOUT", hang("close"), deadline_s=DEADLINE_S),
]
WRITE_ROWS = [
    writing("open: EROFS", "TransferFailed EROFS", errno("open", EROFS)),
    writing("write: moves nothing", "TransferFailed EIO", Fault("write", "zero", nth=2)),
    writing("write: moves nothing, always", "TransferFailed EIO", Fault("write", "zero", times=ALWAYS)),
    writing("write: ESTALE", "TransferFailed ESTALE", errno("write", ESTALE, nth=2)),
    writing("O_DIRECT refused at write", RIGHT, errno("write.direct", EINVAL, times=ALWAYS)),
    writing("allocate: not supported", RIGHT, errno("allocate", EOPNOTSUPP)),
    writing("allocate: EINTR", RIGHT, errno("allocate", EINTR, times=3)),
    writing("allocate: EIO", "TransferFailed EIO", errno("allocate", EIO)),
    writing("allocate: hangs", "TransferTimeout ETIMEDOUT", hang("allocate"), deadline_s=DEADLINE_S),
    *(
        writing(f"{op}: {name}", f"NoRoom {name}", errno(op, code, nth=nth))
        for op, nth in (("allocate", 1), ("write", 2), ("sync", 1), ("close", 1))
        for name, code in (("ENOSPC", ENOSPC), ("EDQUOT", EDQUOT))
    ),
    writing(LOST, RIGHT, Fault("sync", "lose", EIO)),
    writing("sync: EIO always", "TransferFailed EIO", Fault("sync", "lose", EIO, times=ALWAYS)),
    writing("sync: EINTR", RIGHT, errno("sync", EINTR)),
    writing("sync: hangs", "TransferTimeout ETIMEDOUT", hang("sync"), deadline_s=DEADLINE_S),
    writing("close: EIO", "TransferFailed EIO", errno("close", EIO)),
    writing("close: EINTR", RIGHT, errno("close", EINTR)),
    writing("close: hangs", "TransferTimeout ETIMEDOUT", hang("close"), deadline_s=DEADLINE_S),
]
ROWS = [both("no fault", RIGHT), *OPENS, *MOVES, *READ_ROWS, *WRITE_ROWS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", SHORT_AND_WHOLE)
@pytest.mark.parametrize("column", COLUMNS)
def test_every_fault_ends_in_right_bytes_or_in_one_error_that_says_where(
    tmp_path: Path, record_property: Callable[[str, object], None], column: str, share: int
) -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(set(row.expected) == set(COLUMNS) for row in ROWS), "a cell that nobody thought about"
    if not evicts(tmp_path):
        pytest.skip("files here cannot be read past the page cache: set TMPDIR to a directory on a disk")
    always = [row for row in ROWS if row.name in ("no fault", LOST)]
    rows = [row for row in every(share, ROWS, always=always) if row.expected[column] != NOT_THERE]
    outcomes = run(PROGRAM, build(tmp_path), tmp_path / column.replace(" ", "-"), rows, column)
    record_property("table", f"{said(share)}\n{table(rows, [column], outcomes)}")
    assert [one for one in outcomes if not one.holds] == []
    for one in outcomes:
        if one.got != RIGHT:
            text = str(one.detail["text"])
            assert "victim" in text and one.got.split()[1] in text, "path and errno"
            assert one.row.split(":")[0] not in ("read", "write") or "at byte" in text, "offset"
        if "TransferTimeout" in one.got:
            assert one.seconds < IN_TIME_S, "not in time"
        elif one.row == "no fault":
            mode = "posix buffered" if one.column == "read cached" else "posix direct"
            assert next(iter(one.detail["modes"])) == mode, one
        elif ": short" in one.row:
            assert one.detail["why_not_better"] == "", "the fault was another one: direct requests were refused"
        elif one.row.startswith("O_DIRECT refused") and "later" not in one.row:
            assert "O_DIRECT was refused" in str(one.detail["why_not_better"])
            assert list(one.detail["modes"]) == ["posix buffered"], one
    if column == "write":
        again = {one.row: one for one in outcomes}[LOST]
        assert again.detail["filled"] == 6, "each of three chunks is filled again"
