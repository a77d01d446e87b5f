"""The external ``NodeProvider`` for a stock Ray cluster file: Ray's autoscaler decides, ``Machines`` carries it out.

.. code-block:: yaml

    provider:
      type: external
      module: ebbtide_autoscaler.cluster.provider.PoolNodeProvider
      machines: "our_rack.machines:Rack"
      machines_config: {rack: 7}
      disable_node_updaters: true

Written for Ray 2.60's autoscaler v2, which wraps such a class in its ``NodeProviderAdapter`` and calls: which nodes are
there, their tags, whether they run; start some; end some. Each machine starts Ray by itself
(``disable_node_updaters``), with the environment that it is given: ``RAY_CLOUD_INSTANCE_ID`` is what tells Ray which of
its nodes is which machine. The head's own is read from there too; without one Ray leaves the head out of its reckoning.
"""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from ebbtide_autoscaler.cluster.machines import Machine, MachineOrder, load_machines

INSTANCE = "RAY_CLOUD_INSTANCE_ID"
NODE_TYPE = "RAY_NODE_TYPE_NAME"
HEAD_TYPE = "head"  # of a head that does not say


class PoolNodeProvider(NodeProvider):  # type: ignore[misc]  # Ray's class has no types
    """What Ray's autoscaler makes of a cluster file's ``provider``."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        """Args:
            provider_config: that section of the file; ``machines`` and ``machines_config`` are ours.
            cluster_name: of the file.

        Raises:
            ValueError: ``machines`` names no adapter.
        """
        super().__init__(provider_config, cluster_name)
        place, settings = str(provider_config.get("machines", "")), provider_config.get("machines_config", {})
        self._machines = load_machines(place, settings, cluster_name)
        self._head = _head()
        self._known: Mapping[str, Machine] = {}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """The machines with these tags; all other questions are answered from what was found here last."""
        there = {machine.id: machine for machine in (*self._head, *self._machines.there())}
        self._known = there
        return [name for name, one in there.items() if tag_filters.items() <= dict(one.tags).items()]

    def is_running(self, node_id: str) -> bool:
        """Whether the machine runs."""
        known = self._known.get(node_id)
        return known is not None and known.running

    def is_terminated(self, node_id: str) -> bool:
        """Whether it has ended."""
        return node_id not in self._known

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Its tags."""
        return dict(self._known[node_id].tags)

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        """Start ``count`` machines."""
        node_type = tags[TAG_RAY_USER_NODE_TYPE]
        for _ in range(count):
            name = f"{self.cluster_name}-{node_type}-{secrets.token_hex(4)}"
            environment = {INSTANCE: name, NODE_TYPE: node_type}
            said = {**tags, TAG_RAY_NODE_NAME: name, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
            self._machines.start(MachineOrder(name, said, node_config, resources, labels, environment))

    def terminate_node(self, node_id: str) -> None:
        """End a machine.

        Raises:
            ValueError: it is the head.
        """
        if any(head.id == node_id for head in self._head):
            raise ValueError("the head is not ours to end")
        self._machines.stop(node_id)


def _head() -> tuple[Machine, ...]:
    """The head as a machine, where it has said which one it is: Ray looks for it among what the provider shows."""
    name = os.environ.get(INSTANCE, "")
    tags = {
        TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
        TAG_RAY_USER_NODE_TYPE: os.environ.get(NODE_TYPE, HEAD_TYPE),
        TAG_RAY_NODE_NAME: name,
        TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
    }
    return (Machine(name, tags),) if name else ()
