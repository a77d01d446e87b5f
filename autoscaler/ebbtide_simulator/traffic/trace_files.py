"""Columns of a trace's file, Parquet or CSV: those that were asked for, so that a file's texts need no memory."""

import csv
from collections import Counter
from collections.abc import Callable, Collection
from io import TextIOWrapper
from pathlib import Path
from typing import TypeVar

import pyarrow
import pyarrow.csv
import pyarrow.parquet

# Rows of a CSV file are read in blocks, and none may be longer than one: pyarrow's own size, then larger ones.
BLOCKS_BYTES = (1 << 20, 16 << 20, 64 << 20)
_COMPRESSIONS = (".gz", ".bz2", ".zst")  # which pyarrow knows by their suffixes

Found = TypeVar("Found")


class BadTrace(ValueError):
    """A file is no trace of what was asked for; the message names file, column and row."""


def is_csv(path: Path) -> bool:
    """Whether a file is CSV, compressed or not, by its name."""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path
    return plain.suffix.lower() == ".csv"


def refuse_open_quotes(path: Path) -> None:
    """A value of a CSV file that is not closed takes rows after it with it, and pyarrow says nothing.

    Raises:
        BadTrace: there is one.
        OSError, pyarrow.ArrowException: the file cannot be read.
    """
    if not is_csv(path):
        return
    with pyarrow.input_stream(path) as stream:
        if not any(b'"' in block for block in iter(lambda: stream.read(BLOCKS_BYTES[0]), b"")):
            return
    usual = csv.field_size_limit(BLOCKS_BYTES[-1])
    line = 1  # where the row begins that is read
    try:
        with pyarrow.input_stream(path) as stream:
            rows = csv.reader(TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=""), strict=True)
            for _ in rows:
                line = rows.line_num + 1
    except csv.Error as error:
        what = "the row that begins here has a quotation mark that is not closed, or within a text not doubled"
        raise BadTrace(f"{path}: line {line}: {what} ({error})") from error
    finally:
        csv.field_size_limit(usual)


def column_names(path: Path) -> list[str]:
    """The names of a file's columns, without spaces around them, as people write a header.

    Raises:
        BadTrace: two columns have one name.
        OSError, pyarrow.ArrowException: it cannot be read.
    """
    names = [name.strip() for name in _raw_names(path)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise BadTrace(f"{path} has more than one column {twice[0]}")
    return names


def read_columns(path: Path, wanted: Collection[str]) -> pyarrow.Table:
    """The columns of these names, as far as the file has them, in its order.

    Raises:
        BadTrace: a row of a CSV file is longer than any block.
        OSError, pyarrow.ArrowException: it cannot be read.
    """
    raw = [name for name in _raw_names(path) if name.strip() in wanted]
    found = _read_csv(path, raw) if is_csv(path) else _read_parquet(path, raw)
    return found.rename_columns([name.strip() for name in found.column_names])


def _raw_names(path: Path) -> list[str]:
    if is_csv(path):
        return _with_blocks_for(path, lambda block: _csv_names(path, block))
    with pyarrow.parquet.ParquetFile(path) as file:
        return list(file.schema_arrow.names)


def _csv_names(path: Path, block_bytes: int) -> list[str]:
    with pyarrow.csv.open_csv(path, read_options=_blocks(block_bytes), parse_options=_PARSE) as reader:
        return list(reader.schema.names)


def _read_csv(path: Path, names: list[str]) -> pyarrow.Table:
    # Without a name pyarrow would take all columns; one of no name of the file's is a column of nothing.
    convert = pyarrow.csv.ConvertOptions(include_columns=names or [""], include_missing_columns=not names)
    return _with_blocks_for(
        path,
        lambda block: pyarrow.csv.read_csv(
            path, read_options=_blocks(block), parse_options=_PARSE, convert_options=convert
        ),
    )


def _read_parquet(path: Path, names: list[str]) -> pyarrow.Table:
    """This one file: ``read_table`` would add columns that it finds in the names of folders."""
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read(columns=names)


_PARSE = pyarrow.csv.ParseOptions(newlines_in_values=True)


def _blocks(block_bytes: int) -> pyarrow.csv.ReadOptions:
    # Threads read ahead: a few blocks of the usual size, not of 64 MiB.
    return pyarrow.csv.ReadOptions(block_size=block_bytes, use_threads=block_bytes == BLOCKS_BYTES[0])


def _with_blocks_for(path: Path, read: Callable[[int], Found]) -> Found:
    for block_bytes in BLOCKS_BYTES:
        try:
            return read(block_bytes)
        except pyarrow.ArrowInvalid as error:
            if "straddling" not in str(error):  # what pyarrow says of a row that is longer than a block
                raise
    raise BadTrace(f"{path} has a row of more than {BLOCKS_BYTES[-1] >> 20} MiB: is it text without an end?")
