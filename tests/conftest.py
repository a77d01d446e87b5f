"""For all tests: an interrupt interrupts, and tables that tests make are printed.

A process that a shell starts in the background ignores SIGINT from birth, one that nohup starts SIGHUP. What a test
prints in a worker of xdist is lost; what it records (``record_property("table", text)``) comes with its report, and is
shown at the end.

What is collected stays until the end. The garbage collector would look through all of it again and again, while it is
made and in each test after it: so it rests meanwhile, and then leaves that alone.
"""

import ctypes
import gc
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.examples import USUAL, examples

pytest.register_assert_rewrite("tests.builders")  # what fails there shows its values, as in a test

PR_GET_CHILD_SUBREAPER = 37  # linux/prctl.h

# A deadline of hypothesis' (200 ms by default) fails tests on a machine that is busy, and says nothing about the code.
hypothesis.settings.register_profile("unhurried", deadline=None, max_examples=examples(USUAL))
hypothesis.settings.load_profile("unhurried")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_orphan_is_adopted() -> Iterator[None]:
    """A process of tests that adopted orphans would wait for none, and their zombies would keep their pids."""
    yield
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    assert not adopts.value, "this test left PR_SET_CHILD_SUBREAPER set"


@pytest.fixture(autouse=True, scope="session")
def json_is_as_its_schema_says() -> Iterator[None]:
    """Whatever a command prints with ``--json`` in whatever test: it has the shape that is promised."""
    from tests.builders.json_shape import checked_json  # after asserts there are rewritten, see above

    with checked_json():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, text in getattr(report, "user_properties", ()):
            if name == "table":
                terminalreporter.section(report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " "))
                terminalreporter.write_line(text)
