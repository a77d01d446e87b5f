"""Children die with the replica, from birth on; seen with a fake engine's child process."""

from pathlib import Path

import pytest

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.messages import SlotRef
from ebbtide_serve.testing.fake_engine import FAKE_ENGINE
from tests.serve_apps.replica_under_test import SLOT_INDEX, ReplicaUnderTest, gone, until


@pytest.mark.parametrize("watch_at_birth", [True, False])
async def test_kill_9_of_the_replica_takes_the_engine_process_and_its_lock_with_it(
    tmp_path: Path, watch_at_birth: bool
) -> None:
    replica = ReplicaUnderTest(FAKE_ENGINE, tmp_path, watch_at_birth=watch_at_birth, args={"own_process": True})
    children = []
    try:
        await replica.until_ready(60.0)
        children = replica.children()
        assert len(children) == 1
        held = probe(replica.lock_dir, SlotRef("n", SLOT_INDEX))
        assert held is not None and held.pid == children[0].pid
        replica.kill()
        await until(lambda: gone(children), 2.0)
        assert probe(replica.lock_dir, SlotRef("n", SLOT_INDEX)) is None
    finally:
        replica.clean_up(children)


async def test_the_watch_at_birth_needs_no_help_from_the_child(tmp_path: Path) -> None:
    """The child's own code arms nothing here: without the watch at birth it would live on."""
    replica = ReplicaUnderTest(
        FAKE_ENGINE, tmp_path, watch_at_birth=True, args={"own_process": True, "arms_itself": False}
    )
    children = []
    try:
        await replica.until_ready(60.0)
        children = replica.children()
        replica.kill()
        await until(lambda: gone(children), 2.0)
    finally:
        replica.clean_up(children)
