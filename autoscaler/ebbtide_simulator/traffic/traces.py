"""Recorded traffic and jobs, from Parquet or CSV files; what cannot be is refused before anything runs.

======== ==================================== =========================================================
kind     columns                              which traces
======== ==================================== =========================================================
requests t_s, in_tok, out_tok[, hash_ids]     one row a request (Azure 2023, Mooncake)
rates    t_s, rps, mean_in_tok, mean_out_tok  a rate at each time (ServeGen)
rates    t_s, rpm_mid[, rpm_sigma, ...]       the same by the minute, with its noise and tokens (Azure 2024)
rates    t_s, total_tok_per_s                 tokens of prompts and answers together (BurstGPT)
GPUs     start_s, end_s, gpus                 one row an instance; empty: before or after all others (Alibaba DLRM)
jobs     submit_s, gpus, duration_s           one row a job (Philly)
jobs     submit_s, gpus, start_s, end_s       of a scheduler's record (Alibaba); empty: it never began or ended
======== ==================================== =========================================================

Times are seconds from any start; a trace begins at its first row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute

from ebbtide_simulator.traffic.trace_files import BadTrace, column_names, is_csv, read_columns, refuse_open_quotes

Array = npt.NDArray[np.float64]

MINUTE_S = 60
TOKENS_MAX = 10_000_000  # of one request: more than any model's context, so a unit was mistaken
GPUS_MAX = 1_000_000  # of one job
LONGEST_S = 10 * 366 * 86_400.0  # of a trace: beyond it a unit was mistaken
TRAFFIC_LONGEST_S = 366 * 86_400.0  # each second of it is drawn: a year is 250 MB for each figure
PER_S_MAX = 1e9  # requests: beyond all that are asked of anything, and small enough to draw from
TOKENS_PER_S_MAX = PER_S_MAX * 1000


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as they came, by time.

    Attributes:
        at_s: from the trace's start, not falling; of shape (n,).
        prompt_tokens, output_tokens: of the same shape.
        blocks: names of the blocks of 512 tokens that its prompt begins with, one request's after the other's; equal
            names, equal tokens up to there. None: the trace does not say.
        blocks_from: where each request's begin, and where the last one's end; of shape (n + 1,).
    """

    at_s: Array
    prompt_tokens: Array
    output_tokens: Array
    blocks: "npt.NDArray[np.int64] | None" = None
    blocks_from: "npt.NDArray[np.int64]" = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class Rates:
    """Arrival rates at times, straight lines in between.

    Attributes:
        at_s: from the trace's start, rising; of shape (n,).
        per_s: requests per second.
        noise_per_s: standard deviation of the rate from minute to minute.
        prompt_tokens, output_tokens: means of a request; NaN: the trace does not say.
        filled: rows that had no rate, and have one of their neighbours'.
    """

    at_s: Array
    per_s: Array
    noise_per_s: Array
    prompt_tokens: Array
    output_tokens: Array
    filled: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens per second at times, straight lines in between; of shape (n,)."""

    at_s: Array
    per_s: Array


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs in use at times, straight lines in between; of shape (n,)."""

    at_s: Array
    count: Array


Serving = Requests | Rates | Tokens | Gpus


@dataclass(frozen=True, slots=True)
class Jobs:
    """Training jobs by submission.

    Attributes:
        submit_s: from the trace's start, not falling; of shape (n,).
        duration_s: of work on ``gpus`` GPUs without an interruption.
        gpus: whole numbers.
        without_end: rows that are not in it, for they never began or ended.
    """

    submit_s: Array
    duration_s: Array
    gpus: Array
    without_end: int = 0


Table = Mapping[str, Array]


def read_serving(path: Path) -> Serving:
    """The traffic that a file holds.

    Raises:
        BadTrace: it holds none, or what cannot be.
    """
    table = _read(path)
    for columns, make in _SERVING:
        if set(columns) <= table.keys():
            found = make(path, table)
            return _with_blocks(path, found) if isinstance(found, Requests) else found
    raise _lacks(path, table, [columns for columns, _ in _SERVING])


def _refuse_jobs(path: Path) -> None:
    """A scheduler's record has all columns of instances that serve, and one more: nobody submits an instance."""
    if "submit_s" in column_names(path):
        raise BadTrace(f"{path} has a column submit_s: it looks like a trace of jobs, give it to --jobs")


def _with_blocks(path: Path, trace: Requests) -> Requests:
    """With ``hash_ids``, where the file has them. Names become 0, 1, 2: whoever copies a request adds to them."""
    if _BLOCKS not in column_names(path):
        return trace
    table = read_columns(path, [_BLOCKS])
    if pyarrow.types.is_null(table[_BLOCKS].type):
        return trace
    column = pyarrow.chunked_array(table[_BLOCKS].chunks).combine_chunks()
    if not _is_list(column.type):
        more = " (CSV has none: write Parquet, or leave the column out)" if is_csv(path) else ""
        raise BadTrace(f"{path}: hash_ids is of type {column.type}, it must be lists of whole numbers{more}")
    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    names = column.flatten()
    if not pyarrow.types.is_integer(names.type) or names.null_count:
        raise BadTrace(f"{path}: hash_ids are no whole numbers")
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    _, dense = np.unique(names.to_numpy(zero_copy_only=False), return_inverse=True)
    return replace(trace, blocks=dense.astype(np.int64), blocks_from=first)


def _is_list(kind: pyarrow.DataType) -> bool:
    of = pyarrow.types
    return bool(of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind))


def read_jobs(path: Path) -> Jobs:
    """The jobs that a file holds.

    Raises:
        BadTrace: it holds none, or what cannot be.
    """
    table = _read(path)
    for columns, make in _JOBS:
        if set(columns) <= table.keys():
            return make(path, table)
    raise _lacks(path, table, [columns for columns, _ in _JOBS])


def _requests(path: Path, table: Table) -> Requests:
    at_s = _times(path, table, "t_s", longest_s=TRAFFIC_LONGEST_S)
    prompt = _within(path, table, "in_tok", 0, TOKENS_MAX, whole=True)
    output = _within(path, table, "out_tok", 0, TOKENS_MAX, whole=True)
    _refuse(path, "in_tok", np.full(1, not (prompt + output).any()), "is 0, and so is out_tok, in every row")
    return Requests(at_s, prompt, output)


def _rates_by_second(path: Path, table: Table) -> Rates:
    at_s = _times(path, table, "t_s", rising=True, longest_s=TRAFFIC_LONGEST_S)
    per_s, filled = _without_gaps(at_s, _within(path, table, "rps", 0, PER_S_MAX))
    prompt, output = (_within(path, table, name, 0, TOKENS_MAX) for name in ("mean_in_tok", "mean_out_tok"))
    return Rates(at_s, per_s, np.zeros_like(per_s), prompt, output, filled=filled)


def _without_gaps(at_s: Array, per_s: Array) -> tuple[Array, int]:
    """Zeros between two rates are records that are lacking, says who made ServeGen's: a straight line instead.

    Before the first rate and after the last one nothing was asked for.
    """
    known = np.flatnonzero(per_s > 0)
    if not len(known):
        return per_s, 0
    between = slice(int(known[0]), int(known[-1]) + 1)
    found = per_s.copy()
    found[between] = np.interp(at_s[between], at_s[known], per_s[known])
    return found, between.stop - between.start - len(known)


def _tokens(path: Path, table: Table) -> Tokens:
    at_s = _times(path, table, "t_s", rising=True, longest_s=TRAFFIC_LONGEST_S)
    return Tokens(at_s, _within(path, table, "total_tok_per_s", 0, TOKENS_PER_S_MAX))


def _gpus(path: Path, table: Table) -> Gpus:
    """How many are in use, by the minute: Alibaba's own starts and ends are seconds, and hundreds are the same."""
    _refuse_jobs(path)
    gpus = _within(path, table, "gpus", 1, GPUS_MAX, whole=True)
    begin_s, end_s = _finite_or_empty(path, table, "start_s"), _finite_or_empty(path, table, "end_s")
    known = np.concatenate([begin_s[np.isfinite(begin_s)], end_s[np.isfinite(end_s)]])
    _refuse(path, "start_s", np.full(1, not len(known)), "is empty, and so is end_s, in every row: nothing changes")
    first_s, last_s = float(known.min()), float(known.max())
    stays = ~np.isfinite(end_s)
    begin_s, end_s = np.where(np.isfinite(begin_s), begin_s, first_s), np.where(stays, last_s, end_s)
    _refuse(path, "end_s", end_s < begin_s, "is before start_s")
    _refuse(path, "end_s", end_s - first_s > TRAFFIC_LONGEST_S, _too_long(TRAFFIC_LONGEST_S))
    minutes = int((last_s - first_s) // MINUTE_S) + 1
    change = np.zeros(minutes + 1)
    np.add.at(change, ((begin_s - first_s) // MINUTE_S).astype(np.int64), gpus)
    np.add.at(change, np.where(stays, minutes, (end_s - first_s) // MINUTE_S).astype(np.int64), -gpus)
    count: Array = np.maximum(np.cumsum(change[:-1]), 0.0)
    _refuse(path, "gpus", np.full(1, count.max() > GPUS_MAX), f"of all rows is more than {GPUS_MAX:g} at once")
    at_s: Array = np.arange(minutes, dtype=np.float64) * MINUTE_S
    return Gpus(at_s, count)


def _rates_by_minute(path: Path, table: Table) -> Rates:
    at_s = _times(path, table, "t_s", rising=True, longest_s=TRAFFIC_LONGEST_S)
    per_s = _within(path, table, "rpm_mid", 0, 60 * PER_S_MAX) / 60
    sigma = _within(path, table, "rpm_sigma", 0, 60 * PER_S_MAX) / 60 if "rpm_sigma" in table else np.zeros_like(per_s)
    return Rates(at_s, per_s, sigma, *(_per_request(path, table, one, per_s) for one in _BY_MINUTE))


def _per_request(path: Path, table: Table, name: str, per_s: Array) -> Array:
    """Tokens of a mean request, from those of a minute; NaN where the trace does not say."""
    if name not in table:
        return np.full_like(per_s, np.nan)
    by_minute = _within(path, table, name, 0, 60 * TOKENS_PER_S_MAX)
    found: Array = np.divide(by_minute, per_s * 60, out=np.full_like(per_s, np.nan), where=per_s > 0)
    _refuse(path, name, found > TOKENS_MAX, f"is more than {TOKENS_MAX:g} for each of the minute's requests")
    return found


def _jobs(path: Path, table: Table) -> Jobs:
    return _sound_jobs(path, table, _within(path, table, "duration_s", 0, np.inf))


def _jobs_of_record(path: Path, table: Table) -> Jobs:
    """Whoever never began, or had not ended when the record did, has no length that is known."""
    start_s, end_s = _finite_or_empty(path, table, "start_s"), _finite_or_empty(path, table, "end_s")
    ended = ~np.isnan(start_s) & ~np.isnan(end_s)
    _refuse(path, "end_s", np.full(1, not ended.any()), "is no number, or start_s is none, in every row")
    _refuse(path, "end_s", ended & (end_s < start_s), "is before start_s")
    found = _sound_jobs(path, table, np.where(ended, end_s - start_s, 0.0))
    return Jobs(found.submit_s[ended], found.duration_s[ended], found.gpus[ended], int((~ended).sum()))


def _sound_jobs(path: Path, table: Table, duration_s: Array) -> Jobs:
    return Jobs(_times(path, table, "submit_s"), duration_s, _within(path, table, "gpus", 1, GPUS_MAX, whole=True))


def _too_long(longest_s: float) -> str:
    return f"is more than {longest_s / 86_400:.0f} days after the first: times are seconds"


_BY_MINUTE = ("in_tok_per_min", "out_tok_per_min")
_SERVING: tuple[tuple[tuple[str, ...], Callable[[Path, Table], Serving]], ...] = (
    (("t_s", "in_tok", "out_tok"), _requests),
    (("t_s", "rps", "mean_in_tok", "mean_out_tok"), _rates_by_second),
    (("t_s", "rpm_mid"), _rates_by_minute),
    (("t_s", "total_tok_per_s"), _tokens),
    (("start_s", "end_s", "gpus"), _gpus),
)
_JOBS: tuple[tuple[tuple[str, ...], Callable[[Path, Table], Jobs]], ...] = (
    (("submit_s", "duration_s", "gpus"), _jobs),
    (("submit_s", "start_s", "end_s", "gpus"), _jobs_of_record),
)
_BLOCKS = "hash_ids"
_KNOWN = frozenset(name for columns, _ in (*_SERVING, *_JOBS) for name in columns) | {"rpm_sigma", *_BY_MINUTE}


def _read(path: Path) -> Table:
    if not path.exists():
        raise BadTrace(f"{path}: no such file")
    if not path.is_file():
        raise BadTrace(f"{path} is no file")
    try:
        refuse_open_quotes(path)
        column_names(path)  # refuses two of one name
        table = read_columns(path, _KNOWN)
    except (OSError, UnicodeError, pyarrow.ArrowException) as error:  # of what is in it, or of its name
        kind = "CSV" if is_csv(path) else "Parquet (a CSV file must end in .csv)"
        raise BadTrace(f"{path} cannot be read as {kind}: {error}") from error
    if not table.num_rows:
        raise BadTrace(f"{path} has no rows")
    # Those of numbers; an empty one has no type of its own, and no number in any row.
    return {name: _numbers(table[name]) for name in table.column_names if _is_number(table[name].type)}


def _is_number(kind: pyarrow.DataType) -> bool:
    of = pyarrow.types
    return bool(of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) or of.is_null(kind))


def _numbers(column: pyarrow.ChunkedArray) -> Array:
    found: Array = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return found


def _known(path: Path, table: Table, name: str) -> Array:
    values = table[name]
    _refuse(path, name, ~np.isfinite(values), "is no number")
    return values


def _finite_or_empty(path: Path, table: Table, name: str) -> Array:
    values = table[name]
    _refuse(path, name, np.isinf(values), "is infinite")
    return values


def _within(path: Path, table: Table, name: str, least: float, most: float, *, whole: bool = False) -> Array:
    values = _known(path, table, name)
    _refuse(path, name, (values < least) | (values > most), f"is not between {least:g} and {most:g}")
    if whole:
        _refuse(path, name, values != np.floor(values), "is no whole number")
    return values


def _times(path: Path, table: Table, name: str, *, rising: bool = False, longest_s: float = LONGEST_S) -> Array:
    values = _known(path, table, name)
    _refuse(path, name, values < 0, "is negative")
    step = np.diff(values, prepend=values[0] - 1.0)
    _refuse(path, name, step < 0, f"is {'not later' if rising else 'earlier'} than the one before: sort the rows by it")
    _refuse(path, name, rising & (step == 0), "is the same as the one before: a time can have one row")
    found: Array = values - values[0]
    _refuse(path, name, found > longest_s, _too_long(longest_s))
    return found


def _refuse(path: Path, column: str, bad: "npt.NDArray[np.bool_]", why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        many = f", and {int(bad.sum()) - 1} more rows" if bad.sum() > 1 else ""
        raise BadTrace(f"{path}: row {row + 1}{many}: {column} {why}")


def _lacks(path: Path, table: Table, kinds: Sequence[Sequence[str]]) -> BadTrace:
    """What is not there, and what is there and no number."""
    names = column_names(path)
    there, known = set(names), read_columns(path, _KNOWN)
    best = min(
        kinds,
        key=lambda kind: (-len(there.intersection(kind)), len(set(kind) - there), len(set(kind) - table.keys())),
    )
    other = "; or ".join(", ".join(columns) for columns in kinds)
    wrong = [name for name in best if name in there and name not in table]
    if wrong and set(best) <= there:
        types = " and ".join(f"{name} is of type {known[name].type}" for name in wrong)
        return BadTrace(f"{path}: {types}, and must be a number (times are seconds from any start)")
    lacks = [name for name in best if name not in there]
    missing = f"column{'s' if len(lacks) > 1 else ''} {', '.join(lacks)}"
    hint = ""
    if len(there) == 1 and any(sign in names[0] for sign in ";\t|"):
        hint = "; in a CSV file commas go between columns"
    elif any(name.strip().lower() in lacks for name in there):
        hint = "; names are in small letters, without spaces"
    return BadTrace(f"{path} lacks the {missing} (a trace has: {other}); it has {', '.join(names) or 'none'}{hint}")
