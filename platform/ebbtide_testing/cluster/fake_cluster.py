"""A model of the parts of a Ray cluster that the arbiter moves, put together from three.

``machines``: processes, slot locks, memory, node agents. ``scheduler``: logical GPUs, fences, strangers. ``serve``:
the replicas' actors. A node that dies takes everything on it along.

Not modelled: a full machine.
"""

from collections.abc import Callable
from random import Random

from ebbtide.pool.ids import NodeId, SeatId
from ebbtide_testing.cluster.fake_link import FakeLink
from ebbtide_testing.cluster.fake_machines import FakeMachines
from ebbtide_testing.cluster.fake_scheduler import FakeScheduler
from ebbtide_testing.cluster.fake_serve import FakeServe
from ebbtide_testing.cluster.virtual_clock import VirtualClock


class FakeCluster:
    """Nodes with GPUs, and what runs on them."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        link: FakeLink,
        nodes: dict[str, int],
        gpus_of: Callable[[SeatId], int],
    ) -> None:
        self.clock, self.random, self.link = clock, random, link
        self.machines = FakeMachines(clock, random, link)
        self.scheduler = FakeScheduler(clock, random, self.machines)
        self.serve = FakeServe(clock, random, link, self.machines, self.scheduler, gpus_of)
        for node, gpus in nodes.items():
            self.machines.join(NodeId(node), gpus)

    @property
    def nodes(self) -> list[NodeId]:
        """The machines that live."""
        return self.machines.nodes

    def add_node(self, node: NodeId, gpus: int) -> None:
        """A machine joins; one that comes back has a new id."""
        self.machines.join(node, gpus)
        self.scheduler.place()

    def lose_node(self, node: NodeId) -> None:
        """The machine dies, with all that is on it."""
        self.machines.nodes.remove(node)
        self.scheduler.give_up(node)
        self.machines.kill_all(node)
        self.serve.kill_all(node)
        self.scheduler.forget(node)
        self.machines.remove_gpus(node)
