"""A short form of the kill table: each process and each move at least once. The whole table is `make kills`."""

import pytest

from tests.integration.kills.__main__ import KILLED_ELSEWHERE, SHORT, pool_of_two_nodes, run
from tests.integration.kills.moves import Move
from tests.integration.kills.processes import Role
from tests.integration.kills.table import show
from tests.integration.kills.users import users

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]  # 200 s on two quiet cores, 700 s on busy ones


def test_every_process_may_die_once_and_no_promise_is_broken() -> None:
    with pool_of_two_nodes(redis=True) as pool, users(pool.url) as asking:
        cells = list(run(pool, asking, SHORT))
        show(cells)
        assert {role for role, _ in SHORT} == set(Role) - KILLED_ELSEWHERE.keys()
        assert {move for _, move in SHORT} == set(Move)
        assert [cell for cell in cells if not cell.clean] == []
        assert all(cell.ran for cell in cells)
