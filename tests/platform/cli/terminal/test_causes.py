"""One line of whatever failed: the exception that ended it, not the frame that it began with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.cli.terminal.causes import CAUSE_CHARS, cause
from tests.examples import examples

TRACE = """Traceback (most recent call last):
  File "/a/train.py", line 3, in main
    load(1)
    ~~~~^^^
  File "/a/data.py", line 9, in load
    raise FileNotFoundError("no data in /data")
FileNotFoundError: no data in /data
"""

PIECES = st.lists(
    st.sampled_from(
        [
            "Traceback (most recent call last):",
            "KeyError:",
            "\n",
            "\r",
            "\x85",
            "\u2028",
            "\x00",
            "\x1b",
            " ",
            "a",
            "~^",
        ]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("\x00\x07\nout of memory", "out of memory"),
        ("out of memory", "out of memory"),
        ("its worker ended: rank 1\nsecond line", "its worker ended: rank 1"),
        (TRACE, "FileNotFoundError: no data in /data"),
        (f"crashed: {TRACE}", "crashed: FileNotFoundError: no data in /data"),
        (f"crashed\n{TRACE}", "crashed: FileNotFoundError: no data in /data"),
        (f"{TRACE}\nDuring handling of the above exception, another exception occurred:\n\n"
         f"{TRACE.replace('FileNotFoundError', 'my.own.LoadError')}", "my.own.LoadError: no data in /data"),
        ("\x1b[36m(Replica pid=7, ip=1.2.3.4)\x1b[0m ValueError: bad\x07 model", "ValueError: bad model"),
        (f"rank 0: FileNotFoundError: no data in /data (data.py:9); not tried again\n-- rank 0 --\n{TRACE}",
         "rank 0: FileNotFoundError: no data in /data (data.py:9); not tried again"),
        (f"rank 0: FileNotFoundError: no data in /data\n{TRACE.replace('FileN', 'my.RankFailed: FileN')}",
         "rank 0: FileNotFoundError: no data in /data"),
        (f"it lacks no data in /data\n{TRACE}", "it lacks no data in /data: FileNotFoundError: no data in /data"),
        (f"{TRACE}goodbye", "FileNotFoundError: no data in /data"),
        (TRACE.replace("FileNotFoundError: no data in /data", "KeyboardInterrupt"), "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_the_cause_is_one_line(text: str, line: str) -> None:
    assert cause(text) == line


@settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
@given(st.text(max_size=700) | PIECES)
def test_whatever_it_is_given_it_is_one_short_line_and_says_something(text: str) -> None:
    found = cause(text)
    assert len(found.splitlines()) <= 1 and len(found) <= CAUSE_CHARS and found == found.strip()
    if any(word.isalnum() for word in text):
        assert found


def test_a_long_line_says_that_it_goes_on() -> None:
    assert cause("x" * 1000).endswith("...") and cause("x" * CAUSE_CHARS) == "x" * CAUSE_CHARS
