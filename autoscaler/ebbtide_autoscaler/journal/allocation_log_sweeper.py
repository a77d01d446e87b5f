"""Keeps the allocation logs few: the arbiter knows which processes may still write theirs.

In a thread of its own, because a shared directory may hang: then this thread does, and nothing waits for it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ebbtide.agent.slot_locks.allocation_log_retention import Writer, sweep
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER
from ebbtide.client.messages import AgentReport
from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.core.observe.observation import Timestamped

SWEEP_EVERY_S = 300.0  # a listing each time; a busy pool makes some dozens of files in between
FRESH_S = 10.0  # agents report once a second

log = logging.getLogger(__name__)


def holders(
    nodes: Collection[NodeId], agents: Mapping[NodeId, Timestamped[AgentReport]], now_s: float
) -> Callable[[Writer], bool]:
    """Which processes may have their slot now. Pure.

    Args:
        nodes: that live, by the ledger: of one whose agent is silent everybody may.
        agents: what each node's agent said last.
        now_s: seconds since 1970.
    """
    fresh = {node[:8]: heard.report.holders for node, heard in agents.items() if now_s - heard.at_s < FRESH_S}
    silent = {node[:8] for node in (*nodes, *agents) if node[:8] not in fresh}

    def may_hold(writer: Writer) -> bool:
        if writer.node in silent:
            return True
        of_node = fresh.get(writer.node)
        if of_node is None:  # the node is gone, and everybody with it
            return False
        holder = of_node.get(writer.index, UNKNOWN_HOLDER)  # a slot that is not reported is not known to be free
        return holder is not None and holder.pid in (UNKNOWN_HOLDER.pid, writer.pid)

    return may_hold


def start_sweeping(folder: Path, may_hold: Callable[[], Callable[[Writer], bool] | None]) -> None:
    """Sweep now and then until the process ends.

    Args:
        folder: of the allocation logs.
        may_hold: who may have a slot at this moment; None: it is not known, and nothing is removed.
    """

    def run() -> None:
        while True:
            time.sleep(SWEEP_EVERY_S)
            _sweep_once(folder, may_hold())

    threading.Thread(target=run, name="occupancy-sweeper", daemon=True).start()


def _sweep_once(folder: Path, may_hold: Callable[[Writer], bool] | None) -> None:
    if may_hold is None:
        return
    try:
        removed = sweep(folder, time.time(), may_hold)
    except OSError as error:
        log.warning("the allocation logs in %s cannot be listed: %s", folder, error.strerror)
        return
    if removed:
        log.info("removed %d old allocation logs", removed)
