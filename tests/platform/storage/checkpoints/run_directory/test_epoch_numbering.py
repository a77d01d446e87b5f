"""Epochs of a run rise, whatever ledgers its leases are of, and what an old pool has left never passes for younger."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.run_directory.epoch_numbering import epoch_for
from ebbtide.storage.checkpoints.run_directory.lineage import Claim, EpochFound, Start
from ebbtide.storage.errors import Superseded


def begun(epoch: int, ledger: str = "", lease: int = 0) -> EpochFound:
    return EpochFound(epoch, start=Start(None, Claim(ledger, lease)) if ledger else None)


def nobody() -> str:
    raise AssertionError("that decides nothing here")


def test_the_first_ledger_gives_the_epochs() -> None:
    assert epoch_for([], Claim("a", 7), nobody) == 7
    assert epoch_for([begun(7, "a", 7)], Claim("a", 9), nobody) == 9


@pytest.mark.proves(
    "a gang of a younger ledger goes above all that there is",
    "leases of one ledger keep their distance",
)
def test_a_younger_ledger_goes_above_all_and_keeps_its_distance() -> None:
    found = [begun(5, "a", 5), begun(57, "a", 57)]
    assert epoch_for(found, Claim("b", 3), lambda: "b") == 58
    found.append(begun(58, "b", 3))
    assert [epoch_for(found, Claim("b", lease), nobody) for lease in (2, 3, 4, 6)] == [57, 58, 59, 61]


@pytest.mark.proves("a gang of the ledger of an older pool is turned away")
def test_a_stale_gang_of_an_older_ledger_is_turned_away() -> None:
    with pytest.raises(Superseded, match="is of ledger a, which is not the one that the pool has now"):
        epoch_for([begun(57, "a", 57), begun(58, "b", 3)], Claim("a", 99), lambda: "b")
    with pytest.raises(Superseded, match="none is there"):
        epoch_for([begun(58, "b", 3)], Claim("a", 99), lambda: "")


@pytest.mark.proves("where no ledger is known a lower lease is turned away")
def test_where_no_ledger_is_known_only_a_higher_lease_goes_on() -> None:
    assert epoch_for([begun(5)], Claim("b", 5), nobody) == 5
    with pytest.raises(Superseded, match="ebbtide checkpoints use"):
        epoch_for([begun(5)], Claim("b", 4), nobody)


def test_an_epoch_that_was_cut_off_before_it_said_its_lease_is_passed() -> None:
    assert epoch_for([begun(57, "a", 57), begun(58)], Claim("b", 3), lambda: "b") == 59
    assert epoch_for([begun(57, "a", 57), begun(58)], Claim("a", 59), nobody) == 59


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=20))
def test_starts_in_order_always_rise(starts: list[tuple[bool, int]]) -> None:
    found, ledger, lease = list[EpochFound](), 0, 0
    for is_new, more in starts:
        ledger, lease = (ledger + 1, more) if is_new else (ledger, lease + more)
        claim = Claim(f"ledger {ledger}", lease)
        epoch = epoch_for(found, claim, partial(str, claim.ledger))
        assert epoch >= lease and (not found or epoch > found[-1].epoch)
        found.append(begun(epoch, claim.ledger, lease))
