"""The pool's fences as Ray has them, held against the table: adopted at a start, looked at, removed."""

import asyncio
import logging
from collections.abc import Callable

from ray.exceptions import RayError

from ebbtide.client.bounded_calls import BoundedCalls
from ebbtide.pool.ids import NodeId
from ebbtide_autoscaler.control import fence_placement_groups
from ebbtide_autoscaler.control.fence_table import FenceTable, fallen, strays

ADOPT_RETRY_S = 1.0
ANSWER_S = 10.0  # the GCS answers within milliseconds; one that restarts needs some seconds

log = logging.getLogger(__name__)


class FenceSync:
    """Runs in the arbiter's event loop."""

    def __init__(self, pool: str, book: FenceTable) -> None:
        self._pool, self._book = pool, book
        self._calls = BoundedCalls("fences")

    async def adopt(self) -> None:
        """Find again the fences that an earlier arbiter made; returns when Ray has answered, however late."""
        while True:
            try:
                await self.look(lambda: frozenset())
                return
            except (RayError, TimeoutError, OSError, RuntimeError) as error:
                log.warning("the fences cannot be looked up yet: %r", error)
            await asyncio.sleep(ADOPT_RETRY_S)

    async def look(self, asking: Callable[[], frozenset[NodeId]]) -> None:
        """Take fences that have fallen off the table, and remove those that nothing of ours stands for.

        Args:
            asking: nodes on which fences are being asked for now: theirs may be too new for the table.
        """
        before = asking()
        names = dict(self._book.names)
        table = await self._calls("fences", ANSWER_S, fence_placement_groups.table, self._pool)
        gone = fallen(names, table)
        for slot, name in gone.items():
            if self._book.names.get(slot) == name:
                log.warning("the fence %s of slot %s has fallen", name, slot)
                del self._book.names[slot]
        # Read anew: what was asked for and had in the meantime is in the book by now.
        left = {name for name in gone.values() if name in table}
        await self.drop({*left, *strays(self._book.names, table, before | asking())})

    async def drop(self, names: set[str]) -> None:
        """Remove these fences; one that cannot be removed now is a stray at the next look."""
        for name in sorted(names):
            log.info("removing the fence %s", name)
        dropping = [self._calls(("drop", name), ANSWER_S, fence_placement_groups.drop, name) for name in names]
        for failed in await asyncio.gather(*dropping, return_exceptions=True):
            if isinstance(failed, BaseException):
                log.warning("a fence could not be removed, it is tried again: %r", failed)

    async def others(self, node: NodeId) -> list[str]:
        """Placement groups with a GPU of ``node`` that are no fence of ours."""
        ours = frozenset(self._book.names.values())
        return list(await self._calls("groups", ANSWER_S, fence_placement_groups.others, ours, node))

    async def leave(self) -> None:
        """Drop every fence of the pool, also those that the arbiter does not know."""
        table = await self._calls("fences", ANSWER_S, fence_placement_groups.table, self._pool)
        self._book.names.clear()
        await self.drop(set(table))
