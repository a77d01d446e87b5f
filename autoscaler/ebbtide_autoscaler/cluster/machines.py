"""The port to whoever lends machines: start one, stop one, say which there are. Behind it may be any cloud or rack.

An adapter is a class that a Ray cluster file names (``provider: {machines: "package.module:Class"}``); it is made with
the ``machines_config`` of that file and the cluster's name, in the process of Ray's autoscaler on the head node. That
process may be started anew at any time, so what an adapter must know it keeps outside. Methods are called from several
threads, may block for some seconds, and raise what they like: Ray's autoscaler logs it and tries again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast


@dataclass(frozen=True, slots=True)
class MachineOrder:
    """One machine to start, on which ``ray start`` is to run.

    Attributes:
        id: its name, by which it is known from now on; never used twice.
        tags: Ray's own; to be kept with the machine and shown again.
        node_config: what the cluster file says of this node type, for the adapter.
        resources: of this node for Ray; "CPU" and "GPU" among them.
        labels: that the node must have in Ray.
        environment: that ``ray start`` must have there, so that Ray knows which machine a node is.
    """

    id: str
    tags: Mapping[str, str]
    node_config: Mapping[str, Any]
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that was started and has not ended. ``running``: False while it is being started."""

    id: str
    tags: Mapping[str, str]
    running: bool = True


class Machines(Protocol):
    """Whoever lends machines."""

    def there(self) -> Sequence[Machine]:
        """All machines of this cluster that were started and have not ended."""
        ...

    def start(self, order: MachineOrder) -> None:
        """Start one; it need not be running yet when this returns, but ``there`` shows it from then on."""
        ...

    def stop(self, machine: str) -> None:
        """End one; one that is not there is no error."""
        ...


def load_machines(place: str, settings: Mapping[str, Any], cluster_name: str) -> Machines:
    """The adapter at ``place`` ("package.module:Class").

    Raises:
        ValueError: there is none.
    """
    module, _, name = place.partition(":")
    try:
        adapter = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"provider.machines: expected package.module:Class, got {place!r} ({error})") from error
    return cast(Callable[[Mapping[str, Any], str], Machines], adapter)(settings, cluster_name)
