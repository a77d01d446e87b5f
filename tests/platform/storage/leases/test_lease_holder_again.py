"""Readers hold again, under a new token, what an outage or a burial took from them."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.storage.errors import Superseded
from ebbtide.storage.leases.lease_holder import hold
from ebbtide.storage.leases.lease_watch import LeaseObserver
from tests.builders.store import HASTY, PATIENT, Broken, names
from tests.platform.storage.played import until


@pytest.fixture
def broken() -> Iterator[Broken]:
    one = Broken()
    yield one
    one.let_go.set()


def test_a_reader_holds_again_under_a_new_token_when_an_outage_is_over(tmp_path: Path, broken: Broken) -> None:
    with hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system, comes_back=True) as holding:
        holding.say({"phase": "serving"})
        for _ in range(2):
            first = holding.file
            broken.error = errno.EIO
            until(lambda: bool(holding.lost))
            with pytest.raises(Superseded, match="no beat for"):
                holding.check()
            broken.error = 0
            until(lambda: not holding.lost, patience_s=30.0)
            until(lambda: names(tmp_path) == {str(holding.file)})
            assert holding.file != first and holding.file.name == "x"
            holding.confirm()
            (seen,) = LeaseObserver(tmp_path, pace=PATIENT).look()
            assert seen.record is not None and seen.record.note == {"phase": "serving"}
            assert seen.record.token != first.token
    assert names(tmp_path) == set()


def test_a_reader_that_was_buried_though_it_lives_holds_again(tmp_path: Path) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT, comes_back=True) as holding:
        before = str(holding.file)
        (tmp_path / before).unlink()
        until(lambda: bool(names(tmp_path)))
        assert before not in names(tmp_path)
        until(lambda: not holding.lost)
        holding.confirm()
    assert names(tmp_path) == set()


def test_a_reader_that_lets_go_during_an_outage_is_not_held_again(tmp_path: Path, broken: Broken) -> None:
    holding = hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system, comes_back=True)
    broken.error = errno.EIO
    until(lambda: bool(holding.lost))
    assert holding.release() is False
    broken.error = 0
    holding._thread.join(60.0)
    assert not holding._thread.is_alive()
    assert names(tmp_path) <= {str(holding.file)}, "what is left there is silent, and buried"


def test_a_directory_that_hangs_for_a_reader_comes_back_too(tmp_path: Path, broken: Broken) -> None:
    with hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system, comes_back=True) as holding:
        broken.let_go.clear()
        until(lambda: bool(holding.lost))
        broken.let_go.set()
        until(lambda: not holding.lost)
        until(lambda: names(tmp_path) == {str(holding.file)})
