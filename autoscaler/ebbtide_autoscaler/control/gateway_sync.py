"""Keeping the gateway on the settings of the file in force: compared every tick, sent when they differ, tried again.

Level-triggered, like all that the arbiter does: an arbiter that was killed between journaling a file and telling the
gateway tells it at its next start. Sent again now and then, since a restart of Serve may have lost it; the port
compares first, so that costs nothing.
"""

import asyncio
import logging
import time

from ebbtide.client.seat_actuator import SeatActuator

RETRY_S = 2.0
RESEND_S = 30.0

log = logging.getLogger(__name__)


class GatewaySync:
    """Runs in the arbiter's event loop. ``trouble``: why the last try failed, "" if it did not."""

    def __init__(self, serve: SeatActuator) -> None:
        self.trouble = ""
        self.trouble_since_s = 0.0
        self._serve = serve
        self._sent = ""
        self._due_s = 0.0
        self._sending: asyncio.Task[None] | None = None

    def keep(self, settings_json: str) -> None:
        """Have the gateway run with these settings, in good time; returns at once."""
        busy = self._sending is not None and not self._sending.done()
        if busy or (settings_json == self._sent and time.monotonic() < self._due_s):
            return
        if settings_json != self._sent and self.trouble and time.monotonic() < self._due_s:
            return
        self._sending = asyncio.get_running_loop().create_task(self._send(settings_json))

    def has(self, settings_json: str) -> bool:
        """Whether the gateway was told these settings last."""
        return self._sent == settings_json

    async def _send(self, settings_json: str) -> None:
        try:
            await self._serve.start_gateway(settings_json)
        except Exception as error:  # noqa: BLE001 - outermost: nothing was assumed done, it is tried again and shown
            log.warning("the gateway could not be told its settings: %r", error)
            self.trouble_since_s = self.trouble_since_s if self.trouble else time.time()
            self.trouble = f"{type(error).__name__}: {error}"[:500]
            self._due_s = time.monotonic() + RETRY_S
        else:
            self._sent, self.trouble, self.trouble_since_s = settings_json, "", 0.0
            self._due_s = time.monotonic() + RESEND_S
