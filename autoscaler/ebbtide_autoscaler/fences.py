"""Fences: detached 1-GPU placement groups that keep Ray's own scheduler off the pool's GPUs.

A placement group takes any free logical GPU of its node, so which index it got must be found out: when it is the only
one missing on the node, by elimination; else by a probe task inside it. The names of the groups are journaled with
their slots, so that an arbiter that was killed finds them again; groups with our prefix that no record knows are
remains of a creation that nobody lived to record, and are removed.

Blocking: called from one worker thread at a time.
"""

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

PREFIX = "fence-"
READY_S = 2.0  # a fence on a free GPU is ready within 3-260 ms (facts/line.md); after this, somebody else has the GPU
PROBE_S = 30.0  # a probe needs a new worker process: 0.1-1.3 s, more on a loaded machine
NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Held:
    """What came of asking for fences on one node: groups by slot, and slots that could not be had."""

    names: Mapping[SlotId, str]
    refused: tuple[SlotId, ...]


def standing(known: Mapping[SlotId, str]) -> dict[SlotId, str]:
    """The fences of ``known`` that exist."""
    states = {str(entry["name"]): entry["state"] for entry in placement_group_table().values()}
    return {slot: name for slot, name in known.items() if states.get(name) == "CREATED"}


def remove_strays(known: Mapping[SlotId, str]) -> None:
    """Remove every placement group of ours that ``known`` does not name; only while no fence is being asked for."""
    for entry in placement_group_table().values():
        name = str(entry["name"])
        if name.startswith(PREFIX) and entry["state"] != "REMOVED" and name not in known.values():
            drop(name)


def hold(node: NodeId, missing: Iterable[SlotId], *, sole: bool) -> Held:
    """Get fences for the ``missing`` slots of ``node``.

    Args:
        node: where they are.
        missing: slots whose logical GPU should be ours.
        sole: True if these are all the logical GPUs of the node that can be free now: with one missing slot, its
            index then needs no probe.
    """
    wanted = tuple(missing)
    groups = [_group(node) for _ in wanted]
    ready: list[tuple[str, PlacementGroup]] = []
    for name, group in groups:
        if group.wait(READY_S):
            ready.append((name, group))
        else:
            remove_placement_group(group)
    if sole and len(wanted) == 1 and ready:
        return Held({wanted[0]: ready[0][0]}, ())
    names: dict[SlotId, str] = {}
    for (name, group), index in zip(ready, _indices(group for _, group in ready), strict=True):
        slot = slot_id(node, index)
        if slot in wanted:
            names[slot] = name
        else:
            remove_placement_group(group)  # another slot's GPU: its own turn will come
    return Held(names, tuple(slot for slot in wanted if slot not in names))


def drop(name: str) -> None:
    """Remove a fence; one that is gone is no error."""
    try:
        remove_placement_group(get_placement_group(name))
    except ValueError:
        return


def _group(node: NodeId) -> tuple[str, PlacementGroup]:
    name = f"{PREFIX}{node[:8]}-{uuid.uuid4().hex[:8]}"
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
