"""Slots that replicas lack, where they lack them, and whether what others could give would help. One decision's own.

A replica of one slot takes any; one of several needs them on one node, and each such replica waits for a node of its
own choice. What a node gives beyond what is lacked there is as good as any other slot.
"""

from collections import Counter
from collections.abc import Mapping

from ebbtide.pool.ids import EndpointName, NodeId


class Shortfall:
    """What is lacked, and what has been given of it so far.

    Attributes:
        endpoint: the one that lacked some first; empty: none lacks any.
        why: it wants more replicas; a sentence for people.
        need_age_s: how long the neediest endpoint has been busy.
    """

    def __init__(self) -> None:
        """Nobody lacks any."""
        self.endpoint = EndpointName("")
        self.why = ""
        self.need_age_s = 0.0
        self._on: Counter[NodeId] = Counter()
        self._anywhere = 0
        self._given: Counter[NodeId] = Counter()
        self._short_on = 0  # of what is lacked on its nodes, what is still missing
        self._beyond = 0  # given beyond what is lacked there

    @property
    def whom(self) -> str:
        """The endpoint and why it wants more replicas: for people."""
        return f"{self.endpoint} ({self.why})"

    @property
    def asked(self) -> int:
        """Slots that are lacked, whatever has been given."""
        return self._anywhere + self._on.total()

    @property
    def missing(self) -> int:
        """Lacked slots that nothing given so far covers."""
        return self._short_on + max(0, self._anywhere - self._beyond)

    def lack(self, count: int, node: NodeId | None = None) -> None:
        """So many more are lacked; on ``node``, or anywhere. All of it comes before anything is given."""
        if node is None:
            self._anywhere += count
        else:
            self._on[node] += count
            self._short_on += count

    def missing_by_node(self) -> Mapping[NodeId, int]:
        """What is still missing on each node on which some is lacked."""
        return {node: missing for node in self._on if (missing := self._missing_on(node))}

    def leave(self, node: NodeId) -> None:
        """What is missing there is not asked for now."""
        missing = self._missing_on(node)
        self._on[node] -= missing
        self._short_on -= missing

    def helps(self, slots: Mapping[NodeId, int]) -> int:
        """How many of the missing slots these would cover."""
        there, rest = 0, 0
        for node, count in slots.items():
            used = min(count, self._missing_on(node))
            there += used
            rest += count - used
        return there + min(rest, max(0, self._anywhere - self._beyond))

    def best_of(self, slots: Mapping[NodeId, int], most: int) -> Mapping[NodeId, int]:
        """``most`` of these: those first that are lacked on their very node."""
        found: Counter[NodeId] = Counter()
        for node, count in slots.items():
            found[node] = min(count, most, self._missing_on(node))
            most -= found[node]
        for node, count in slots.items():
            more = min(count - found[node], most)
            found[node] += more
            most -= more
        return +found

    def give(self, slots: Mapping[NodeId, int]) -> None:
        """These are on their way."""
        for node, count in slots.items():
            used = min(count, self._missing_on(node))
            self._given[node] += count
            self._short_on -= used
            self._beyond += count - used

    def _missing_on(self, node: NodeId) -> int:
        return max(0, self._on.get(node, 0) - self._given.get(node, 0))
