"""What a slot is called whatever Ray calls its node."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace

from ebbtide.agent.ray_workers.logical_gpus import gpu_users
from ebbtide.agent.slot_identity import MACHINE_LABEL, machine_name, slot_uuids
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.agent.slot_watch import SlotWatch
from ebbtide.client.messages import SlotRef


def test_a_machine_is_named_by_its_label_or_else_by_its_host_name() -> None:
    assert machine_name({MACHINE_LABEL: "rack7", "other": "x"}) == "rack7"
    assert machine_name({"other": "x"}) == machine_name({MACHINE_LABEL: ""}) == socket.gethostname()


def test_a_gpu_has_its_own_uuid_and_a_logical_one_that_of_its_machine_and_index() -> None:
    uuid = slot_uuids("a/b", lambda index: "GPU-1234" if index == 1 else "")
    assert [uuid(index) for index in range(3)] == ["a_b-0", "GPU-1234", "a_b-2"]


def test_a_report_says_the_uuids_and_two_nodes_on_two_machines_do_not_share_a_lock(tmp_path: Path) -> None:
    watches = []
    for machine in ("a", "b"):
        watch = SlotWatch(f"node-{machine}", tmp_path, uuid_of=slot_uuids(machine, lambda _: ""))
        watch.watch([SlotRef(f"node-{machine}", index) for index in (0, 1)])
        watches.append(watch)
    assert watches[0].observe().uuids == {0: "a-0", 1: "a-1"}
    with SlotLock(tmp_path, SlotRef("node-a", 0, "a-0"), workload="w", epoch=1):
        assert watches[0].observe().holders[0] is not None
        assert watches[1].observe().holders == {0: None, 1: None}


def test_a_node_that_comes_back_under_another_id_meets_the_locks_of_the_one_before(tmp_path: Path) -> None:
    with lock_of(tmp_path, "old-node"):
        watch = SlotWatch("new-node", tmp_path, uuid_of=slot_uuids("a", lambda _: ""))
        watch.watch([SlotRef("new-node", 0)])
        holder = watch.observe().holders[0]
        assert holder is not None and holder.workload == "survivor"
    assert watch.observe().holders[0] is None


def lock_of(lock_dir: Path, node: str) -> SlotLock:
    return SlotLock(lock_dir, SlotRef(node, 0, "a-0"), workload="survivor", epoch=1)


def test_who_has_a_logical_gpu_is_told_by_title_pid_and_job() -> None:
    def worker(pid: int, **slots: int) -> SimpleNamespace:
        allocated = {name: SimpleNamespace(resource_slots=[SimpleNamespace(slot=slot)]) for name, slot in slots.items()}
        return SimpleNamespace(pid=pid, job_id=b"\x01\x00\x00\x00", used_resources=allocated)

    found = gpu_users([worker(os.getpid(), GPU=1), worker(2**22 + 1, GPU=0), worker(1, CPU=0)])
    assert set(found) == {0, 1}
    assert f"(pid {os.getpid()}, Ray job 01000000)" in found[1]
    assert found[0].startswith("a Ray worker (pid")
