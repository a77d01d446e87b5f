"""Telling the arbiter what goes on, and obeying the routing table that it answers with.

An arbiter that does not answer changes nothing: the last table goes on to be obeyed (the design's "fail static").
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ebbtide.client.messages import GatewayReport, RoutingTable

REPORT_EVERY_S = 0.1
REPORT_EVERY_AWAY_S = 0.5  # while the arbiter is away
log = logging.getLogger(__name__)


class ArbiterPort(Protocol):
    """The one call that a gateway makes."""

    async def report_gateway(self, report: GatewayReport) -> RoutingTable | None:
        """Report, and get the routing table; None: the arbiter did not answer."""
        ...


async def report_forever(
    link: ArbiterPort, report: Callable[[], GatewayReport], adopt: Callable[[RoutingTable], None]
) -> None:
    """Report each 0.1 s until cancelled."""
    away = False
    while True:
        try:
            table = await link.report_gateway(report())
            if table is not None:
                adopt(table)
            was_away, away = away, table is None
        except Exception:  # outermost loop: the last table stays in force, and the next report says it all again
            log.exception("the report to the arbiter failed")
            was_away, away = away, True
        if away != was_away:
            log.warning("the arbiter %s", "is away: keeping the last routing table" if away else "is back")
        await asyncio.sleep(REPORT_EVERY_AWAY_S if away else REPORT_EVERY_S)
