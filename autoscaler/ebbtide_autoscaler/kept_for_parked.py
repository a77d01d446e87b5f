"""Slots that are kept for jobs which have just parked: they come back cheaply on these, and on no others. Pure."""

from collections.abc import Mapping, Sequence
from itertools import chain

from ebbtide.pool.ids import JobName, SlotId
from ebbtide.pool.index import awaited
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.signals import PolicyConfig


def kept_for_parked(
    now_s: float, state: PoolState, draft: Draft, config: PolicyConfig
) -> Mapping[SlotId, Sequence[JobName]]:
    """Slots of parked jobs, while waiting for them is cheaper than a restart elsewhere; then nothing is kept."""

    def soon(name: JobName) -> bool:
        return now_s - state.jobs[name].asked_s < draft.restart_costs_s(name, config.restart_cost_s)

    waiting = awaited(state.jobs)
    if not waiting:
        return {}
    back = {name for name in {*chain.from_iterable(waiting.values())} if soon(name)}
    for name in back:
        draft.waits_until(state.jobs[name].asked_s + draft.restart_costs_s(name, config.restart_cost_s))
    found = {slot: tuple(name for name in names if name in back) for slot, names in waiting.items()} if back else {}
    return {slot: names for slot, names in found.items() if names}
