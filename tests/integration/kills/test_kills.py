"""A short form of the kill table: each process once, each move at least once. The whole table is `make kills`."""

import pytest

from tests.integration.kills.__main__ import pool_of_two_nodes, run
from tests.integration.kills.moves import Move
from tests.integration.kills.processes import Role
from tests.integration.kills.table import show
from tests.integration.kills.users import users

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]  # 200 s on two quiet cores

# In the order of a tide, so that few cells must first wait for another one.
PAIRS = (
    (Role.ARBITER, Move.PARKING),
    (Role.GATEWAY, Move.IDLE),
    (Role.SERVE_CONTROLLER, Move.IDLE),
    (Role.REPLICA, Move.DRAINING),
    (Role.WORKER, Move.GROWING),
    (Role.ENGINE, Move.STARTING),
    (Role.GCS_REDIS, Move.IDLE),
    (Role.AGENT, Move.RESUMING),
    (Role.TRAIN_CONTROLLER, Move.STOPPING),
    (Role.DRIVER, Move.IDLE),
    (Role.RAYLET, Move.IDLE),
)


def test_every_process_may_die_once_and_no_promise_is_broken() -> None:
    with pool_of_two_nodes(redis=True) as pool, users(pool.url) as asking:
        cells = run(pool, asking, PAIRS)
        show(cells)
        assert {role for role, _ in PAIRS} == set(Role) - {Role.GCS_MEMORY}
        assert [cell for cell in cells if not cell.clean] == []
        assert all(cell.ran for cell in cells)
