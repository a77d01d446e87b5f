"""The one rank of a session's job, in its Ray worker: a supervisor, its gate, its lock, its helper.

Everything that it is made of works without Ray; this only puts it together.
"""

import os
from dataclasses import replace
from pathlib import Path

from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.messages import Lease
from ebbtide.helper.client import Helper
from ebbtide.system.runtime_dir import HELPER_SOCKET
from ebbtide_train.arbiter_client.park_requests import ParkRequests
from ebbtide_train.arbiter_client.rank_gate import RankGate
from ebbtide_train.interactive.idle_detection.gpu_usage import NvmlMeter
from ebbtide_train.interactive.idle_detection.idle_watch import IdleWatch
from ebbtide_train.interactive.idle_detection.owner_notices import OwnerNotices
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.process_tree.process_env import base_env, is_gpu, slot_env
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.interactive.supervision.session_supervisor import End, SessionSupervisor, Verdict
from ebbtide_train.worker.job_plan import JobPlan, Left, my_place

LAST_WORD_S = 15.0  # the arbiter counts a gang that left without its last report as crashed
DONE_WORD_S = 2.0  # after the end the controller and the driver speak for it


def run_rank(plan: JobPlan) -> Verdict | Left:
    """Keep the session until it is over or leaves.

    Raises:
        SessionProblem: it crashed, or cannot be started or revived here; counts as a crash of the gang.
    """
    assert plan.session is not None, "entry looks"
    spec, lease = plan.session.spec, my_place().lease
    slot, link = lease.slots[0], ArbiterLink()
    place = SessionFolder(plan.run_dir)
    gate = RankGate(link, rank=0)
    gate.begin()  # what its process tree has done is not lost: it leaves as its supervisor has it leave
    idle = IdleWatch(
        spec.idle,
        session=spec.name,
        owner=spec.owner,
        herald=OwnerNotices(plan.session.ways, say=lambda line: print(f"ebbtide: {line}", flush=True)),
        meter=NvmlMeter(slot.uuid if is_gpu(slot) else ""),
        touched_s=place.touched_s,
    )

    def lock_for(given: Lease) -> SlotLock:
        return SlotLock(
            Path(plan.lock_dir),
            given.slots[0],
            workload=spec.name,
            epoch=given.epoch,
            ledger=plan.ledger,
            log_dir=Path(plan.shared_dir) / "occupancy",
        )

    keeper = SessionSupervisor(
        replace(spec, env={**base_env(os.environ), **spec.env}),
        place,
        lease=lease,
        incarnation=plan.incarnation,
        node=slot.node,
        gate=gate,
        lock_for=lock_for,
        snapshots=HelperSnapshots(Helper(Path(plan.lock_dir).parent / HELPER_SOCKET), spec.name),
        wishes=ParkRequests(link, spec.name),
        idle=idle,
        slot_env=slot_env,
    )
    flush_s = 0.0
    try:
        verdict = keeper.run()
        leaves = verdict.end in (End.LEFT, End.CANCELLED)
        flush_s = LAST_WORD_S if leaves else DONE_WORD_S
        return Left(cancelled=verdict.end is End.CANCELLED, text=verdict.text) if leaves else verdict
    finally:
        gate.close(flush_s=flush_s)
