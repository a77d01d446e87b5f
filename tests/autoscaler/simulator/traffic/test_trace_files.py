"""Request logs as the world writes them: texts of several lines, however long the file, and little memory for them."""

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Requests, read_serving

HEADER = "t_s,in_tok,out_tok,prompt\n"
ROWS = 60_000  # of the shortest text here: several of pyarrow's blocks of 1 MiB


def trace(folder: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(text: str, count: int = ROWS) -> str:
    return HEADER + "".join(f'{number},100,20,"{text}"\n' for number in range(count))


def requests(path: Path) -> int:
    found = read_serving(path)
    assert isinstance(found, Requests)
    assert (found.prompt_tokens == 100).all() and (found.output_tokens == 20).all()
    return len(found.at_s)


TEXTS = {
    "lines": "one\ntwo, with a comma\n\nfour, the last",
    "CRLF": "one\r\ntwo, with a comma\r\n\r\nfour",
    "CR": "one\rtwo, with a comma\r\rfour, the last",
    "lines that look like rows": 'first\n7,100,20,""second""\n8,100,20,""',
    "marks": 'she said ""yes"",\nand ""no""',
    "only marks": '""""',
    "another alphabet": "Grüße,\n日本語\u2028" * 2,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_column_of_text_may_have_line_breaks(text: str, tmp_path: Path) -> None:
    assert requests(trace(tmp_path, rows(text))) == ROWS


def test_a_whole_file_with_windows_line_ends_and_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    content = "\ufeff" + rows("one\ntwo, three").replace("\n", "\r\n")
    assert requests(trace(tmp_path, content)) == ROWS


@pytest.mark.parametrize("mebibytes", [2, 20])
def test_a_text_longer_than_a_block_is_read(mebibytes: int, tmp_path: Path) -> None:
    long = "a line, and another\n" * (mebibytes * 52_429)
    content = rows("short", 10) + f'10,100,20,"{long}"\n11,100,20,"short again"\n'
    assert requests(trace(tmp_path, content)) == 12


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(rows("one\ntwo, three").encode(), 1)
    assert requests(trace(tmp_path, packed, "trace.csv.gz")) == ROWS


def test_a_text_in_another_encoding_is_no_matter(tmp_path: Path) -> None:
    assert requests(trace(tmp_path, rows("Grüße\naus Köln").encode("latin-1"))) == ROWS


def test_a_number_may_change_its_kind_after_the_first_block(tmp_path: Path) -> None:
    count = 200_000
    lines = "".join(f"{number},100,20,x\n" for number in range(count))
    content = f"{HEADER}{lines}{count}.5,100,20,x\n{count + 1},1e2,20.0,x\n"
    assert requests(trace(tmp_path, content)) == count + 2


OPEN = {
    "in the last row": rows("one\ntwo", 20) + '20,100,20,"never closed\n21,100,20,x\n',
    "before others": rows("one", 5) + '5,100,20,"never closed\n6,100,20,"closed"\n7,100,20,"again"\n',
    "twice": rows("one", 5) + '5,100,20,"open\n6,100,20,"again\n7,100,20,x\n',
    "not doubled": rows("one", 5) + '5,100,20,"she said "yes, no"\n6,100,20,x\n',
    "in a large file": rows("one\ntwo") + f'{ROWS},100,20,"never closed\n' + rows("x")[len(HEADER) :],
}


@pytest.mark.parametrize("content", OPEN.values(), ids=OPEN)
def test_a_quotation_mark_that_is_not_closed_takes_no_rows_with_it(content: str, tmp_path: Path) -> None:
    """Each row after it would be part of its text, and never missed."""
    with pytest.raises(BadTrace, match=r"trace\.csv: line \d+: .* a quotation mark that is not closed"):
        read_serving(trace(tmp_path, content))


def test_the_line_of_the_open_quotation_mark_is_named(tmp_path: Path) -> None:
    content = f'{HEADER}0,100,20,"one\ntwo"\n1,100,20,x\n2,100,20,"open\n3,100,20,x\n'
    with pytest.raises(BadTrace, match=r"line 5: "):
        read_serving(trace(tmp_path, content))


def test_a_quotation_mark_within_a_value_without_them_is_text(tmp_path: Path) -> None:
    assert requests(trace(tmp_path, f'{HEADER}0,100,20,a 5" disk\n1,100,20,x\n')) == 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_need_no_memory(kind: str, tmp_path: Path) -> None:
    """256 MiB of prompts beside some numbers: not even a third of them may be in memory at once."""
    count, text = 1024, "a line, and another\n" * 13_107
    path = tmp_path / f"trace.{kind}"
    if kind == "csv":
        with path.open("w") as file:
            file.write(HEADER)
            file.writelines(f'{number},100,20,"{text}"\n' for number in range(count))
    else:
        schema = pyarrow.schema([("t_s", "int64"), ("in_tok", "int64"), ("out_tok", "int64"), ("prompt", "string")])
        with pyarrow.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for number in range(count):
                writer.write_table(pyarrow.table([[number], [100], [20], [text]], schema=schema))
    child = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from ebbtide_simulator.traffic.traces import read_serving\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = len(read_serving(Path(sys.argv[1])).at_s)\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", child, str(path)], capture_output=True, text=True, check=True)
    found, grown_kib = map(int, done.stdout.split())
    assert found == count
    assert grown_kib < 85 << 10
