"""Nodes by the names that people use: the start of Ray's id, or the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

MACHINE_LABEL = "ebbtide.io/machine"
ELASTIC_LABEL = "ebbtide.io/elastic"  # "true" on nodes that Ray's autoscaler may start and take away


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster."""

    id: str
    machine: str
    address: str = ""

    @property
    def label(self) -> str:
        """For people."""
        return f"node {self.id[:8]} ({self.machine})"


def cluster_nodes() -> tuple[Node, ...]:
    """The living nodes of the cluster that this process has joined."""
    import ray  # noqa: PLC0415 - half a second, for which help and completion of `drain` and `logs` would wait

    return tuple(
        Node(
            str(entry["NodeID"]),
            str(entry.get("Labels", {}).get(MACHINE_LABEL) or entry["NodeManagerHostname"]),
            str(entry["NodeManagerAddress"]),
        )
        for entry in ray.nodes()
        if entry["Alive"]
    )


def choose(name: str, nodes: Sequence[Node]) -> Node:
    """The node that a person means.

    Raises:
        ValueError: none, or several.
    """
    meant = [node for node in nodes if name in (node.id, node.machine, node.address)]
    meant = meant or [node for node in nodes if len(name) >= 4 and node.id.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    known = ", ".join(f"{node.id[:8]} ({node.machine})" for node in (meant or nodes)) or "none"
    raise ValueError(f"{name!r} {'may be any of' if meant else 'is no node of the pool; there are'}: {known}")
