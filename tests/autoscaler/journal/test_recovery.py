"""A replay from a snapshot ends where a replay of everything does, whatever the pool has been through."""

import json
from dataclasses import replace

import pytest
from hypothesis import settings

from ebbtide.client.messages import KeyGrant
from ebbtide.pool.events import Body, Event, JobHeld, NodeForgotten, NodeFound, NodeLost, Slot, SlotFound
from ebbtide.pool.ids import EndpointName, NodeId, RecordId, SlotId
from ebbtide.pool.state import Hold
from ebbtide_autoscaler.core.plan.inputs import EndpointMemory, Memory
from ebbtide_autoscaler.journal.key_store import MadeKey, key_record
from ebbtide_autoscaler.journal.recovery import (
    CONFIGS_KEPT,
    PART_ENTRIES,
    Recovered,
    encode_event,
    from_snapshot,
    snapshot_of,
)
from tests.builders.pool_events import Pool
from tests.examples import examples
from tests.platform.pool.builder import JOB, RUNNING, after, pool


def parts(known: Recovered) -> list[dict[str, object]]:
    """The snapshot's records as they come back from a file."""
    contents = snapshot_of(known)
    return [
        {"type": "snapshot", "part": part, "of": len(contents), **json.loads(json.dumps(content, allow_nan=False))}
        for part, content in enumerate(contents, 1)
    ]


class SnapshotAnywhere(Pool):
    """The pool under fire; its ledger is cut at every third of what happened."""

    def teardown(self) -> None:
        records = [json.loads(json.dumps(encode_event(event))) for event in self.events]
        whole = Recovered()
        for record in records:
            whole.take(record)
        assert whole.state == self.state
        for cut in {len(records) // 3, 2 * len(records) // 3, len(records)}:
            before = Recovered()
            for record in records[:cut]:
                before.take(record)
            after = Recovered()
            for record in [*parts(before), *records[cut:]]:
                after.take(record)
            assert after.state == whole.state
            assert after == whole


TestSnapshotAnywhere = SnapshotAnywhere.TestCase
TestSnapshotAnywhere.settings = settings(
    max_examples=examples(30), stateful_step_count=50, deadline=None, database=None, derandomize=True
)


def a_key(name: str) -> MadeKey:
    return MadeKey(
        KeyGrant(name=name, sha256="0" * 64, scopes=("chat",)), made_s=5.0, old_sha256="1" * 64, old_until_s=9.0
    )


def known() -> Recovered:
    found = Recovered()
    found.memory = Memory(endpoints={EndpointName("chat"): EndpointMemory(aim=2, busy_since_s=4.5)})
    for number in range(CONFIGS_KEPT + 2):
        found.take({"type": "config", "config": f"file {number}"})
    for number in range(PART_ENTRIES + 1):
        found.take({"type": "fence", "slot": f"n:{number}", "name": f"fence {number}"})
    for name in ("one", "two"):
        found.take(json.loads(json.dumps(key_record(a_key(name), 1.0))))
    found.take({"type": "arbiter_started"})
    return found


def test_memory_configs_fences_keys_and_counters_are_in_a_snapshot() -> None:
    before = known()
    assert before.configs[-1] == before.config and len(before.configs) == CONFIGS_KEPT
    after = from_snapshot(parts(before))
    assert after == before
    assert after.keys["two"] == a_key("two")
    assert after.fences[SlotId(f"n:{PART_ENTRIES}")] == f"fence {PART_ENTRIES}"


@pytest.mark.proves("a snapshot after a torn one begins anew", "a torn snapshot is ignored")
def test_a_snapshot_replaces_what_was_known_and_a_torn_one_changes_nothing() -> None:
    before, other = known(), Recovered()
    other.take({"type": "fence", "slot": "gone:0", "name": "old"})
    cut = parts(before)
    for part in cut[:-1]:
        other.take(part)
    assert other.fences == {SlotId("gone:0"): "old"} and other.config == ""
    for part in [*cut[:2], *cut[3:]]:  # its first and last parts are there, and one between them is not
        other.take(part)
    assert other.fences == {SlotId("gone:0"): "old"} and other.config == ""
    for part in [*cut[:-2], *cut]:
        other.take(part)
    assert other == before


def test_a_snapshot_of_before_people_could_hold_jobs_holds_none_and_one_of_today_says_who_does() -> None:
    before = Recovered()
    before.state = after(pool(), *RUNNING, JobHeld(JOB, "ann", "new data"), at_s=5.0)
    assert from_snapshot(parts(before)).state.jobs[JOB].held == Hold("ann", "new data", 5.0)
    old = json.loads(json.dumps(parts(before)))
    (jobs,) = [part["entries"] for part in old if part.get("field") == "jobs"]
    del jobs[JOB]["held"]
    del jobs[JOB]["stood_aside"]
    found = from_snapshot(old).state.jobs[JOB]
    assert found == replace(before.state.jobs[JOB], held=None)


def test_a_slot_whose_type_an_older_ledger_or_snapshot_tells_is_known_without_it() -> None:
    slot = Slot(SlotId("n:0"), NodeId("n"), 0, uuid="GPU-1")
    bodies: tuple[Body, ...] = (NodeFound(slot.node, 0), SlotFound(slot))
    records = [encode_event(Event(RecordId(f"1-{number}"), 1.0, None, body)) for number, body in enumerate(bodies)]
    records[1]["body"]["slot"]["gpu_type"] = "logical"
    told = Recovered()
    for record in records:
        told.take(record)
    assert told.state.slots[slot.id].slot == slot

    written = json.loads(json.dumps(parts(told)).replace('"uuid":', '"gpu_type": "logical", "uuid":'))
    assert "gpu_type" in json.dumps(written)
    again = Recovered()
    for record in written:
        again.take(record)
    assert again.state == told.state


def test_a_copy_is_folded_on_apart() -> None:
    one = known()
    two = one.copy()
    two.take({"type": "fence", "slot": "n:0", "name": ""})
    two.take({"type": "arbiter_started"})
    assert SlotId("n:0") in one.fences and one.tally != two.tally


def of(*bodies: Body) -> list[dict[str, object]]:
    return [json.loads(json.dumps(encode_event(Event(RecordId(f"1.{n}"), 9.0, None, b)))) for n, b in enumerate(bodies)]


def test_nodes_of_a_pool_that_was_taken_down_are_left_until_they_are_back_or_forgotten() -> None:
    old, new = NodeId("old"), NodeId("new")
    slot = Slot(SlotId("old:0"), old, 0)
    found = Recovered()
    for record in of(NodeFound(old, 1), SlotFound(slot)):
        found.take(record)
    assert found.left == frozenset()
    found.take({"type": "pool_stopped", "at_s": 9.0})
    assert found.left == {old}
    assert from_snapshot(parts(found)).left == {old}, "also when the next arbiter reads a snapshot"
    for record in of(NodeFound(new, 1), NodeLost(old), NodeLost(new)):
        found.take(record)
    assert found.left == {old}, "a node of the new cluster that dies is news"
    back, forgotten = found.copy(), found.copy()
    for record in of(NodeFound(old, 1)):
        back.take(record)
    for record in of(NodeForgotten(old, (slot.id,))):
        forgotten.take(record)
    assert back.left == forgotten.left == frozenset()
