"""A helper counts by its word and not by its file, and whoever asks for it never waits."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent.helper_status import HelperStatus, ask
from tests.platform.helper.trees import helping


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path.resolve()


@pytest.fixture
def silent(folder: Path) -> Iterator[Path]:
    """Somebody who listens and never answers."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "silent.sock"))
        listening.listen()
        yield folder / "silent.sock"


def asked(word: HelperStatus) -> bool:
    word.ask()
    word.wait()
    return word.can_freeze


def test_a_helper_with_a_driver_can_and_its_death_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with helping(folder, None, "--fake-driver", str(folder / "driver")) as running:
        word = HelperStatus(running.socket)
        assert not word.can_freeze and asked(word)
    assert running.socket.is_socket(), "a killed helper leaves its socket"
    assert not asked(word) and "it does not answer" in caplog.text
    running.socket.unlink()
    assert not asked(word)


def test_a_helper_without_a_driver_cannot_and_that_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with helping(folder, None) as running:
        word = HelperStatus(running.socket)
        assert not asked(word) and not asked(word)
    assert len(caplog.records) == 1 and "takes nobody off a GPU" in caplog.text


def test_one_that_does_not_answer_in_time_is_given_up(silent: Path) -> None:
    began_s = time.monotonic()
    assert "it does not answer" in ask(silent, 0.05)
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed before the answer was there"),
        (b"{}\n", "it does not say"),
        (b"no json\n", "it does not say"),
        (b'{"ok": true, "result": {"driver": 1}}\n', "it does not say"),
    ],
)
def test_whoever_answers_something_else_is_no_helper(folder: Path, answer: bytes, why: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "other.sock"))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        assert why in ask(folder / "other.sock")
        serving.join(30)


def test_where_there_is_no_helper_nobody_is_asked_and_nothing_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on every node without a GPU."""
    word = HelperStatus(folder / "none.sock", why_not=lambda _path: pytest.fail("asked"))
    assert not asked(word) and word._asking is None and not caplog.records


def test_nobody_waits_for_an_answer_and_one_question_is_asked_at_a_time(silent: Path) -> None:
    answering, questions = threading.Event(), list[Path]()

    def why_not(path: Path) -> str:
        questions.append(path)
        assert answering.wait(30)
        return ""

    word = HelperStatus(silent, why_not=why_not)
    word.ask()
    word.ask()
    assert not word.can_freeze
    answering.set()
    word.wait()
    assert word.can_freeze and questions == [silent]
