"""Tables on narrow terminals and in pipes: nothing of what is shown is cut, nothing is padded."""

import re
import string
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ebbtide.cli.terminal.tables import Listing
from tests.examples import examples

LONG = "train-a-very-long-name-that-a-person-gave-to-a-job-2026"
CAUSE = "waits for 2 slots: the pool has 4, chat/0 holds 1 and night holds 3, and it is frozen"


def shown(table: Listing, width: int, *, terminal: bool = True) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False).print(table)
    return out.getvalue().splitlines()


def jobs(*rows: tuple[Text | str, ...]) -> Listing:
    return Listing("jobs", ("job", "state", "steps", "waits for"), rows, below=["waits for"], optional=["steps"])


@pytest.mark.parametrize("width", [10, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_name_state_and_cause_are_whole(width: int) -> None:
    lines = shown(jobs((LONG, "running", "12 (10)", ""), (LONG + "b", "waiting", "0 (0)", CAUSE)), width)
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    everything = re.sub(r"\s", "", "".join(lines))
    assert re.sub(r"\s", "", CAUSE) in everything
    if width >= 40:
        assert "running" in "\n".join(lines) and "waiting" in "\n".join(lines)
    if width >= 80:
        assert LONG in "\n".join(lines) and "12 (10)" in "\n".join(lines)


def test_a_sentence_stands_beside_its_row_where_there_is_room() -> None:
    row = ("a", "waiting", "0", "its turn")
    assert shown(jobs(row), 80)[2] == "a    waiting  0      its turn"
    assert shown(jobs(row), 24)[2:] == ["a    waiting  0", "  waits for: its turn"]


def test_optional_columns_leave_first() -> None:
    assert "steps" not in " ".join(shown(jobs(("a" * 20, "waiting", "0", "x" * 40)), 32))


def test_a_pipe_has_a_line_for_each_row_and_a_word_for_each_column() -> None:
    told = jobs((LONG, "running", "12 (10)", ""), ("b", Text("waiting"), "", f"{CAUSE}\nand more"))
    lines = shown(told, 1_000_000, terminal=False)
    assert len(lines) == 4 and all(line == line.rstrip() for line in lines)
    cells = [re.split(r" {2,}", line) for line in lines[1:]]
    assert cells[1:] == [[LONG, "running", "12 (10)", "-"], ["b", "waiting", "-", f"{CAUSE} and more"]]


def test_an_empty_table_is_its_columns() -> None:
    assert shown(jobs(), 60) == ["jobs", "job  state  steps  waits for"]
    assert shown(jobs(), 1_000_000, terminal=False) == shown(jobs(), 60)


texts = st.text(st.sampled_from(string.ascii_letters + " -/:[]\n漢字é"), max_size=60)


@settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=5), st.integers(12, 200))
def test_whatever_is_in_it_fits_and_loses_no_letter(rows: list[tuple[str, ...]], width: int) -> None:
    table = Listing("t", ("one", "two", "three", "four"), rows, below=["four"])
    for line in shown(table, width):
        assert cell_len(line) <= width and line == line.rstrip()
    told = sorted("".join("".join(shown(table, width)).split()))
    extra = told.copy()
    for letter in "".join("".join(row) for row in rows).replace(" ", "").replace("\n", ""):
        assert letter in extra, f"{letter!r} was lost"
        extra.remove(letter)
