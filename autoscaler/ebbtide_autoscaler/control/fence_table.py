"""Which fences stand, as far as is known; and what is to be done when Ray's table says otherwise. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ebbtide.pool.ids import NodeId, SlotId, node_of
from ebbtide_autoscaler.core.observe.observation import FenceView

SEPARATOR = ":"  # in no pool's name


@dataclass(frozen=True, slots=True)
class Fence:
    """A placement group of ours as Ray has it. ``node``: where it stands; "" while it stands nowhere."""

    name: str
    state: str
    node: str

    @property
    def node_prefix(self) -> str:
        """The beginning of the id of the node that it was made for."""
        return self.name.split(SEPARATOR)[2]


def prefix(pool: str) -> str:
    """How the names of all fences of ``pool`` begin."""
    return f"fence{SEPARATOR}{pool}{SEPARATOR}"


def stands(fence: Fence | None, slot: SlotId) -> bool:
    """Whether ``fence`` keeps strangers off ``slot``."""
    node = slot.rpartition(":")[0]
    return fence is not None and fence.state == "CREATED" and fence.node in ("", node)


@dataclass(slots=True)
class FenceTable:
    """The fence of each slot by name, and what was learnt of strangers where none was to be had."""

    names: dict[SlotId, str] = field(default_factory=dict)
    refused_until_s: dict[SlotId, float] = field(default_factory=dict)
    strangers: dict[SlotId, str] = field(default_factory=dict)  # who has the logical GPU of a refused slot

    def views(self, slots: Iterable[SlotId], now_s: float) -> dict[SlotId, FenceView]:
        """The view of each slot's fence."""

        def view(slot: SlotId) -> FenceView:
            if slot in self.names:
                return FenceView.HELD
            refused = self.refused_until_s.get(slot, 0.0) > now_s
            return FenceView.REFUSED if refused else FenceView.ABSENT

        return {slot: view(slot) for slot in slots}

    def held(self, slot: SlotId, name: str) -> None:
        """A fence was had."""
        self.names[slot] = name
        self.refused_until_s.pop(slot, None)
        self.strangers.pop(slot, None)

    def refused(self, slot: SlotId, until_s: float, who: str) -> None:
        """None was to be had, and until then it is not asked for again."""
        self.refused_until_s[slot] = until_s
        if who:
            self.strangers[slot] = who
        else:
            self.strangers.pop(slot, None)

    def forget_nodes(self, alive: frozenset[NodeId]) -> list[tuple[SlotId, str]]:
        """Forget the slots of all nodes but ``alive``; gives the fences that are to be removed now."""
        for slot in [slot for slot in self.refused_until_s if node_of(slot) not in alive]:
            del self.refused_until_s[slot]
            self.strangers.pop(slot, None)
        return [(slot, name) for slot, name in self.names.items() if node_of(slot) not in alive]


def fallen(names: Mapping[SlotId, str], table: Mapping[str, Fence]) -> dict[SlotId, str]:
    """The fences that do not hold their slot any more; any that is left of them is to be removed."""
    return {slot: name for slot, name in names.items() if not stands(table.get(name), slot)}


def strays(names: Mapping[SlotId, str], table: Mapping[str, Fence], asking: Iterable[NodeId]) -> list[str]:
    """Fences that nobody knows, except on nodes where one is being asked for."""
    busy = {node[:8] for node in asking}
    known = set(names.values())
    return [name for name, fence in table.items() if name not in known and fence.node_prefix not in busy]
