"""Every edge that a table has can be taken, every other one raises."""

from collections.abc import Mapping
from enum import Enum
from itertools import product

import pytest

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.transitions import (
    JOB_CLAIMS_SLOTS,
    JOB_HOLDS_SLOTS,
    JOB_TABLE,
    OCCUPIED,
    SEAT_TABLE,
    SLOT_TABLE,
    JobState,
    SeatState,
    SlotState,
    advance,
)

TABLES: tuple[tuple[Mapping[Enum, Mapping[Enum, str]], type[Enum]], ...] = (  # type: ignore[assignment]
    (SLOT_TABLE, SlotState),
    (JOB_TABLE, JobState),
    (SEAT_TABLE, SeatState),
)
PAIRS = [(table, now, then) for table, states in TABLES for now, then in product(states, states)]


@pytest.mark.proves("only edges of the tables are taken")
@pytest.mark.parametrize(("table", "now", "then"), PAIRS)
def test_only_edges_of_the_table_can_be_taken(table: Mapping[Enum, Mapping[Enum, str]], now: Enum, then: Enum) -> None:
    if then in table[now]:
        assert advance(table, "it", now, then) is then
        return
    with pytest.raises(IllegalTransition, match=f"it is {now.value}: it cannot become {then.value}"):
        advance(table, "it", now, then)


@pytest.mark.parametrize(("table", "states"), TABLES)
def test_every_state_has_a_row_and_every_edge_says_when(
    table: Mapping[Enum, Mapping[Enum, str]], states: type[Enum]
) -> None:
    assert set(table) == set(states)
    assert all(len(when) > 3 for row in table.values() for when in row.values())


@pytest.mark.parametrize(("table", "states"), TABLES)
def test_every_state_can_be_reached_and_left(table: Mapping[Enum, Mapping[Enum, str]], states: type[Enum]) -> None:
    entered = {then for row in table.values() for then in row}
    assert entered | {SlotState.UNFENCED, JobState.WAITING, SeatState.COLD} >= set(states)
    assert all(table.values())


def test_no_job_holds_and_claims_at_once() -> None:
    assert not JOB_HOLDS_SLOTS & JOB_CLAIMS_SLOTS
    assert SlotState.FREE not in OCCUPIED
