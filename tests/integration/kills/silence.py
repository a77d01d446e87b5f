"""Promise 4 by the status, as it is looked at all the time: whoever waits is told why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TELL_S = (
    5.0  # a new arbiter has to look around before it decides; a decision says why, and one comes ten times a second
)
WAITING = frozenset({"waiting", "parked"})


@dataclass
class Silences:
    """Who waits without a reason, and since when."""

    _told: list[str] = field(default_factory=list)
    _since_s: dict[str, float] = field(default_factory=dict)

    def take(self, status: Mapping[str, Any], at_s: float) -> None:
        """One look; an arbiter that says by itself why it moves nothing has told everybody."""
        still = status["arbiter"].get("frozen") or status.get("notices")
        silent = {
            str(job["job"]) for job in status["jobs"] if job["state"] in WAITING and not job.get("waits") and not still
        }
        self._since_s = {name: self._since_s.get(name, at_s) for name in silent}
        for name, since_s in self._since_s.items():
            if at_s - since_s > TELL_S:
                self._told.append(f"{name} has waited for {at_s - since_s:.0f} s and the status does not say why")
                self._since_s[name] = at_s

    def take_told(self) -> list[str]:
        """What was found since the last call."""
        found, self._told = self._told, []
        return found
