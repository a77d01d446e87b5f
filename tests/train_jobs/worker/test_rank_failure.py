"""A failure as a rank tells it: one line, the author's place, and always readable elsewhere."""

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_train.worker.rank_failure import MESSAGE_CHARS, as_told


def caught(code: str, folder: Path, name: str = "mine.py") -> BaseException:
    path = folder / name
    path.write_text(code)
    try:
        exec(compile(code, str(path), "exec"), {"torch": torch})
    except BaseException as error:  # noqa: BLE001 what it raises is what is looked at
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_authors_innermost_line_and_no_librarys(tmp_path: Path) -> None:
    code = "import json\ndef load():\n    return json.loads('{')\nload()\n"
    line = as_told(caught(code, tmp_path)).raised.line
    assert line.startswith("JSONDecodeError: Expecting property name") and line.endswith("(mine.py:3)")
    assert as_told(caught("x = 1\ntorch.zeros(2) @ torch.zeros(3)\n", tmp_path)).raised.line.endswith("(mine.py:2)")


def test_a_syntax_error_is_placed_where_it_is() -> None:
    try:
        compile("x = 1\ndef f(:\n", "/somewhere/mine.py", "exec")
    except SyntaxError as error:
        told = as_told(error)
    assert told.raised.line == "SyntaxError: invalid syntax (mine.py:2)"


def test_an_error_of_another_process_is_told_by_its_last_line(tmp_path: Path) -> None:
    text = 'Caught KeyError in worker 0.\\nOriginal Traceback (most recent call last):\\n  File "x"\\nKeyError: 3'
    assert as_told(caught(f'raise RuntimeError("""{text}""")', tmp_path)).raised.message == "KeyError: 3"


def test_an_error_without_words_is_its_type_and_place(tmp_path: Path) -> None:
    assert as_told(caught("assert 1 == 2\n", tmp_path)).raised.line == "AssertionError (mine.py:1)"


def test_an_error_whose_text_cannot_be_made_is_told_all_the_same(tmp_path: Path) -> None:
    code = "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('no')\nraise Odd\n"
    assert "cannot be made: ValueError" in as_told(caught(code, tmp_path)).raised.line


def test_what_no_pickle_can_carry_arrives(tmp_path: Path) -> None:
    init = "def __init__(self, *, why): self.lock = __import__('threading').Lock()"
    code = f"class Odd(Exception):\n    {init}\nraise Odd(why=1)\n"
    told = pickle.loads(pickle.dumps(as_told(caught(code, tmp_path), step=7, steps_here=3)))
    assert (told.step, told.steps_here) == (7, 3)
    assert str(told) == "Odd: 1 (mine.py:3)" or str(told).startswith("Odd")


@pytest.mark.parametrize("depth", [1, 5])
def test_a_chain_that_is_a_circle_ends(depth: int) -> None:
    errors = [ValueError(str(number)) for number in range(depth)]
    for one, other in zip(errors, [*errors[1:], errors[0]], strict=True):
        one.__cause__ = other
    assert 1 < len(as_told(errors[0]).chain) <= 5


@given(st.text())
def test_whatever_an_error_says_is_one_short_line(text: str) -> None:
    told = as_told(RuntimeError(text))
    assert len(told.raised.message) <= MESSAGE_CHARS and len(told.raised.line.splitlines()) <= 1
