"""Why an engine failed is found in what its processes logged, in one line."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from ebbtide_serve.engine import fault_record
from ebbtide_serve.engine.fault_record import LONGEST, VARIABLE, FaultRecord, note_errors, one_line

FRONT = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
CHILD = """
import logging, os, sys
from ebbtide_serve.engine.fault_record import note_errors
note_errors(os.environ)
note_errors(os.environ)
log = logging.getLogger("vllm.v1.engine.core")
"""


@pytest.fixture
def record() -> Iterator[FaultRecord]:
    environ = os.environ | {}
    made = FaultRecord(environ)
    os.environ[VARIABLE] = environ[VARIABLE]
    yield made
    made.close()
    del os.environ[VARIABLE]


def process(code: str) -> int:
    """A process of the engine."""
    return subprocess.run([sys.executable, "-c", CHILD + code], stderr=subprocess.DEVNULL).returncode


def failing(error: str, said: str = "EngineCore failed to start.") -> str:
    return f"""
try:
    raise {error}
except Exception:
    log.exception({said!r})
"""


def test_the_exception_of_a_process_is_the_cause(record: FaultRecord) -> None:
    process(failing("ValueError('No available memory for the cache blocks.\\nmore')"))
    assert record.cause(FRONT) == "ValueError: No available memory for the cache blocks."


def test_the_first_exception_counts_and_those_that_point_elsewhere_do_not(record: FaultRecord) -> None:
    process("log.error('something of no weight')")
    process(failing("KeyError('rope')", "WorkerProc failed to start."))
    process(failing("Exception('WorkerProc failed in a background process. See stack trace for root cause.')"))
    process(failing("OSError('too late')"))
    assert record.cause(FRONT) == "KeyError: 'rope'"


def test_without_an_exception_the_last_error_that_was_logged_counts(record: FaultRecord) -> None:
    process("log.warning('no'); log.error('a first one'); log.error('libnccl is missing\\nsecond line')")
    assert record.cause(FRONT) == "libnccl is missing"


def test_what_the_front_itself_raises_counts_where_it_says_why(record: FaultRecord) -> None:
    process("log.error('something of no weight')")
    assert record.cause(ValueError("max_model_len is too large")) == "ValueError: max_model_len is too large"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "its engine process was killed by SIGKILL: perhaps the machine was out of memory"),
        (-11, "its engine process was killed by SIGSEGV"),
        (-99, "its engine process was killed by signal 99"),
        (3, "its engine process ended with exit code 3 and said nothing"),
    ],
)
def test_a_process_that_says_nothing_is_told_by_how_it_ended(record: FaultRecord, code: int, words: str) -> None:
    said = f"Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': {code}}}"
    assert record.cause(RuntimeError(said)) == words


def test_where_nothing_is_known_the_front_is_quoted(record: FaultRecord) -> None:
    assert record.cause(FRONT) == f"RuntimeError: {FRONT}"


def test_a_record_that_was_cut_short_is_left_out(record: FaultRecord) -> None:
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND)
    os.write(file, b'[1]\n{"said": 3, "other": 1}\n{"said": "half')
    os.close(file)
    process(failing("ValueError('lost with the half line')"))
    process(failing("ValueError('whole')"))
    assert record.cause(FRONT) == "ValueError: whole"


def test_a_process_that_logs_for_ever_fills_no_memory(record: FaultRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    process("for n in range(5000): log.error('x' * 290)")
    file = os.open(os.environ[VARIABLE], os.O_RDONLY)
    assert os.fstat(file).st_size < fault_record.MOST_BYTES + 1000
    os.close(file)
    assert record.cause(FRONT) == "x" * 290


def test_after_the_end_of_the_record_a_process_goes_on(record: FaultRecord) -> None:
    record.close()
    record.close()
    assert process(failing("ValueError('x')") + "\nsys.exit(7)") == 7


def test_somebody_elses_engine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = list(logging.getLogger("vllm").handlers)
    note_errors(os.environ)
    assert logging.getLogger("vllm").handlers == before


class Odd(BaseModel):
    """As vLLM's configuration classes."""

    length: int = 0

    @field_validator("length")
    @classmethod
    def _short(cls, value: int) -> int:
        raise ValueError(f"{value} is longer than the model takes")


def test_pydantics_frame_is_left_out() -> None:
    with pytest.raises(ValueError) as caught:
        Odd(length=9)
    assert one_line(caught.value) == "Odd.length: 9 is longer than the model takes"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("\n\n  a\nb"), "RuntimeError: a"),
        (ValueError("Validation error for field 'x':\n   expected int"),
         "ValueError: Validation error for field 'x': expected int"),
        (AssertionError(""), "AssertionError"),
    ],
)  # fmt: skip
def test_an_exception_in_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


@given(st.text())
def test_it_is_one_line_whatever_is_said(text: str) -> None:
    line = one_line(RuntimeError(text))
    assert len(line.splitlines()) == 1 and len(line) <= LONGEST + 1
