"""What this node has for state that leaves its slots: free memory, measured rates, a helper. Read now and then."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ebbtide.agent.helper_status import HelperStatus
from ebbtide.agent.host_memory.available_memory import available_bytes
from ebbtide.client.messages import NodeCapabilities
from ebbtide.snapshot.rates_file import RatesUnusable, read_rates
from ebbtide.system.runtime_dir import HELPER_SOCKET

READ_EVERY_S = 5.0  # a few small files; whoever parks asks for the memory itself, this is for estimates

_log = logging.getLogger(__name__)


class CapabilityReader:
    """Call it as often as you like, from one thread."""

    def __init__(
        self,
        runtime_dir: Path,
        *,
        available: Callable[[], int | None] = available_bytes,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        runtime_dir: of the pool, on this node.
        """
        self._folder, self._available, self._clock_s = runtime_dir, available, clock_s
        self._known = NodeCapabilities()
        self._until_s = float("-inf")
        self._helper = HelperStatus(runtime_dir / HELPER_SOCKET)
        self._said = ""

    def __call__(self) -> NodeCapabilities:
        """What was found at most `READ_EVERY_S` ago; of the helper, what it answered since."""
        now_s = self._clock_s()
        if now_s >= self._until_s:
            self._known, self._until_s = NodeCapabilities(self._available(), self._rates()), now_s + READ_EVERY_S
            self._helper.ask()
        return replace(self._known, helper=self._helper.can_freeze)

    def _rates(self) -> tuple[tuple[str, float], ...]:
        """A file that cannot be believed counts as none, as in ``ebbtide probe``; said once."""
        try:
            measured = read_rates(self._folder).measured
        except RatesUnusable as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("%s", error)
            return ()
        return tuple(sorted((lane.value, rate.bytes_per_s) for lane, rate in measured.items()))
