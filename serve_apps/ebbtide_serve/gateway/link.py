"""Telling the arbiter what goes on, and obeying the orders that it answers with: where requests go, and whose.

An arbiter that does not answer changes nothing: the last orders go on to be obeyed ("fail static": docs/promises.md).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ebbtide.client.messages import GatewayOrders, GatewayReport

REPORT_EVERY_S = 0.1
REPORT_EVERY_AWAY_S = 0.5  # while the arbiter is away
log = logging.getLogger(__name__)


class ArbiterPort(Protocol):
    """The one call that a gateway makes."""

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        """Report, and get orders; None: the arbiter did not answer."""
        ...


async def report_forever(
    link: ArbiterPort, report: Callable[[], GatewayReport], obey: Callable[[GatewayOrders], None]
) -> None:
    """Report each 0.1 s until cancelled."""
    away = False
    while True:
        try:
            orders = await link.report_gateway(report())
            if orders is not None:  # guard: an arbiter that is away changes nothing of what is obeyed
                obey(orders)  # guard: new orders are obeyed when they come, so a revoked key is soon refused
            was_away, away = away, orders is None
        # guard: an arbiter that fails ends no reports and changes no orders
        except Exception:  # outermost loop: the last orders stay in force, and the next report says it all again
            log.exception("the report to the arbiter failed")
            was_away, away = away, True
        if away != was_away:
            log.warning("the arbiter %s", "is away: keeping the last orders" if away else "is back")
        await asyncio.sleep(REPORT_EVERY_AWAY_S if away else REPORT_EVERY_S)
