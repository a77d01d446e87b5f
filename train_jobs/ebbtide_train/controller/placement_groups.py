"""The placement groups of a job's gangs, known by their names.

Ray takes back a placement group when its creator and the creator's whole job are gone. A controller that is killed
while its driver lives on leaves its gang's group behind, and the CPUs with it: after five such deaths nothing else
could start on two nodes of eight CPUs each (seen in a run). So the driver removes what a dead controller has left.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

SEPARATOR = ":"  # in no incarnation


def make(
    incarnation: str, bundle: Mapping[str, float], labels: Sequence[Mapping[str, str]], strategy: str
) -> PlacementGroup:
    """A group with one ``bundle`` for each worker, on nodes with its ``labels``; returns before it is there."""
    bundles = [dict(bundle) for _ in labels]
    name = f"{_prefix(incarnation)}{uuid4().hex[:8]}"
    selectors = [dict(label) for label in labels]
    return placement_group(bundles, strategy=strategy, name=name, bundle_label_selector=selectors)


def remove_left(incarnation: str) -> int:
    """Remove every group of this incarnation of a job; how many there were. For the driver of that job.

    Raises:
        RayError: the cluster does not answer.
    """
    left = [
        str(entry["name"])
        for entry in placement_group_table().values()
        if str(entry["name"]).startswith(_prefix(incarnation)) and entry["state"] != "REMOVED"
    ]
    for name in left:
        with suppress(ValueError):  # no such group: a controller that ends in order removes it itself
            remove_placement_group(get_placement_group(name))
    return len(left)


def _prefix(incarnation: str) -> str:
    return f"gang{SEPARATOR}{incarnation}{SEPARATOR}"
