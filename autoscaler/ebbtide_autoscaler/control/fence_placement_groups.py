"""Fences: detached 1-GPU placement groups that keep Ray's own scheduler off the pool's GPUs.

A placement group takes any free logical GPU of its node, so which index it got must be found out: when it is the only
one missing on the node, by elimination; else by a probe task inside it. The names of the groups are journaled with
their slots, so that an arbiter that was killed finds them again; groups with our prefix that no record knows are
remains of a creation that nobody lived to record, and are removed. Names carry the pool and the node: another pool's
fences are never touched, and those of a node that died are known by name. (Ray keeps such a group for ever, in state
RESCHEDULING; its label keeps it off other nodes, seen in a run.)

Blocking: called from worker threads, for one node by one at a time.
"""

import math
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide_autoscaler.control.fence_table import SEPARATOR, Fence, prefix

READY_S = 2.0  # a fence on a free GPU is ready within 2-260 ms (docs/origins.md); after this, somebody else has it
PROBE_S = 30.0  # a probe needs a new worker process: 0.1-1.3 s (docs/origins.md), more on a loaded machine
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Held:
    """What came of asking for fences on one node: groups by slot, and slots that could not be had."""

    names: Mapping[SlotId, str]
    refused: tuple[SlotId, ...]


def table(pool: str) -> dict[str, Fence]:
    """Every fence of ``pool`` that was not removed, by name."""
    found = {}
    for entry in placement_group_table().values():
        name, state = str(entry["name"]), str(entry["state"])
        if name.startswith(prefix(pool)) and state != "REMOVED":
            nodes = dict(entry.get("bundles_to_node_id") or {})
            found[name] = Fence(name, state, str(nodes.get(0, "")))
    return found


def others(known: frozenset[str], node: NodeId) -> list[str]:
    """The placement groups on ``node`` that hold a GPU and are none of the ``known`` fences, by name or id."""
    found = []
    for key, entry in placement_group_table().items():
        nodes = dict(entry.get("bundles_to_node_id") or {})
        here = any(
            nodes.get(index) == node and float(bundle.get("GPU", 0)) > 0
            for index, bundle in dict(entry.get("bundles") or {}).items()
        )
        if here and entry["name"] not in known and entry["state"] != "REMOVED":
            found.append(str(entry["name"] or key))
    return sorted(found)


def hold(pool: str, node: NodeId, missing: Iterable[SlotId], *, sole: bool) -> Held:
    """Get fences for the ``missing`` slots of ``node``; what is got and not kept is removed, in any case.

    Args:
        pool: whose fences they are.
        node: where they are.
        missing: slots whose logical GPU should be ours.
        sole: True if these are all the logical GPUs of the node that can be free now: with one missing slot, its
            index then needs no probe.
    """
    wanted = tuple(missing)
    groups: list[tuple[str, PlacementGroup]] = []
    names: dict[SlotId, str] = {}
    try:
        for _ in wanted:
            groups.append(_group(pool, node))
        deadline_s = time.monotonic() + READY_S  # of all together: Ray makes them side by side
        # Ray counts whole seconds here, and with 0 it does not look.
        ready = [pair for pair in groups if pair[1].wait(max(1, math.ceil(deadline_s - time.monotonic())))]
        if sole and len(wanted) == 1 and ready:
            names[wanted[0]] = ready[0][0]
        else:
            for (name, _), index in zip(ready, _indices(group for _, group in ready), strict=True):
                if slot_id(node, index) in wanted:  # else another slot's GPU: its own turn will come
                    names[slot_id(node, index)] = name
    finally:
        for name, group in groups:
            if name not in names.values():
                remove_placement_group(group)
    return Held(names, tuple(slot for slot in wanted if slot not in names))


def drop(name: str) -> None:
    """Remove a fence; one that is gone is no error."""
    try:
        remove_placement_group(get_placement_group(name))
    except ValueError:
        return


def _group(pool: str, node: NodeId) -> tuple[str, PlacementGroup]:
    name = f"{prefix(pool)}{node[:8]}{SEPARATOR}{uuid.uuid4().hex[:8]}"
    group = placement_group(
        [{"GPU": 1}], name=name, lifetime="detached", bundle_label_selector=[{NODE_LABEL: str(node)}]
    )
    return name, group


def _indices(groups: Iterable[PlacementGroup]) -> list[int]:
    probe = ray.remote(num_gpus=1, num_cpus=0)(_my_gpu)
    asked = [probe.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote() for group in groups]
    return [int(index) for index in ray.get(asked, timeout=PROBE_S)]


def _my_gpu() -> int:
    return int(ray.get_gpu_ids()[0])
