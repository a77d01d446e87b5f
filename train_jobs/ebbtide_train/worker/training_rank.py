"""One rank: its gate, its session, and the author's train function inside.

Runs in a Ray Train worker, after the backend has given it its place. A gang that leaves by order returns
``Left`` to its controller; whatever else ends the train function is raised as `RankFailed`.
"""

import faulthandler
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.messages import Lease
from ebbtide.helper.client import Helper
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide.system.process import started_ticks
from ebbtide.system.runtime_dir import HELPER_SOCKET
from ebbtide_train.arbiter_client.rank_gate import RankGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import Cancelled, Leaving
from ebbtide_train.session.parking.device_context import DeviceContext
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.worker.cuda_context import CudaContext
from ebbtide_train.worker.job_plan import JobPlan, Left, Returned, my_place
from ebbtide_train.worker.node_memory import LeftOnNodes, NodeMemory
from ebbtide_train.worker.rank_failure import as_told, authors_part, place_of_thread
from ebbtide_train.worker.train_function import train_function

# The arbiter counts a gang that left without its last report as crashed. One that restarts needs about 2 s.
LAST_WORD_S = 15.0
STDERR = 2  # Ray has put the file of this worker in its place
DONE_WORD_S = 2.0  # after the end the controller and the driver speak for the job


def run_rank(plan: JobPlan, args: Mapping[str, Any]) -> Returned | Left:
    """Run this process's rank to its end; gives what the train function returned, or ``Left``.

    Raises:
        RankFailed: the train function raised, or something of ours around it.
    """
    place = my_place()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # ranks share the cores, and one thread has one order of summation
    me = threading.get_ident()
    stop_dump = faulthandler.cancel_dump_traceback_later
    gate = RankGate(ArbiterLink(), rank=place.rank, where=lambda: place_of_thread(me), on_begin=stop_dump)
    # Into the log, by a thread in C: also of one that never gives the interpreter back.
    faulthandler.dump_traceback_later(plan.section.startup_timeout_s, file=STDERR)
    flush_s = 0.0
    session: TrainingSession | None = None
    first: BaseException | None = None  # what the author's code raised: what letting go raises after it counts less
    try:
        settings = _settings(plan)
        memory = NodeMemory(settings.node, RegionKey(settings.job, settings.lease.epoch, settings.rank))
        session = TrainingSession(
            settings,
            gate,
            lock_for=_lock_for(plan),
            memory=memory,
            left_behind=LeftOnNodes(),
            context=_context(plan, settings) if torch.cuda.is_available() else None,
        )
        with activate(session):
            try:
                value = train_function(plan)(args)
                session.must_have_trained()
            except BaseException as error:
                first = error
                raise
        flush_s = DONE_WORD_S
        return Returned(value, session.restored, session.finished, session.total)
    except Leaving as leaving:
        flush_s = LAST_WORD_S
        return Left(cancelled=isinstance(leaving, Cancelled), text=str(leaving))
    except BaseException as error:  # noqa: BLE001 also a SystemExit: it ends the code of the author, no process
        cause = error if first is None or isinstance(first, Leaving) else first
        finished, restored = (0, 0) if session is None else (session.finished, session.restored)
        failure = as_told(cause, step=finished, steps_here=max(0, finished - restored))
        raise failure.with_traceback(authors_part(cause.__traceback__)) from cause.__cause__
    finally:
        stop_dump()
        gate.close(flush_s=flush_s)


def _settings(plan: JobPlan) -> SessionSettings:
    place, section = my_place(), plan.section
    return SessionSettings(
        job=section.name,
        incarnation=plan.incarnation,
        run_dir=plan.run_dir,
        rank=place.rank,
        world=len(place.lease.slots),
        lease=place.lease,
        ledger=plan.ledger,
        node=place.lease.slots[place.rank].node,
        global_batch=section.global_batch,
        seed=section.seed,
        micro_batch_max=section.micro_batch,
        checkpoint_every_s=section.checkpoint_every_s,
        keep_checkpoints=section.keep_checkpoints,
        bucket_cap_mb=section.bucket_cap_mb,
        in_place=section.in_place,
        meeting_root=_meeting_root(plan),
    )


def _context(plan: JobPlan, settings: SessionSettings) -> DeviceContext:
    started = started_ticks(os.getpid())
    assert started is not None, "this process lives"

    def warm_up() -> None:
        torch.zeros(1, device="cuda")

    def let_go() -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    helper = Helper(Path(plan.lock_dir).parent / HELPER_SOCKET)
    name = f"{settings.job}/{settings.rank}"
    return CudaContext(helper, name, pid=os.getpid(), started=started, warm_up=warm_up, let_go=let_go)


def _meeting_root(plan: JobPlan) -> Path | None:
    """Beside the slot locks, which are node-local, if the whole gang is on this node."""
    nodes = {slot.node for slot in my_place().lease.slots}
    return Path(plan.lock_dir).parent / "rendezvous" / plan.section.name if len(nodes) == 1 else None


def _lock_for(plan: JobPlan):  # type: ignore[no-untyped-def] # mypy cannot see that a SlotLock is the session's Lock
    def lock_for(lease: Lease, rank: int) -> SlotLock:
        return SlotLock(
            Path(plan.lock_dir),
            lease.slots[rank],
            workload=plan.section.name,
            epoch=lease.epoch,
            rank=rank,
            ledger=plan.ledger,
            log_dir=Path(plan.shared_dir) / "occupancy",
        )

    return lock_for
