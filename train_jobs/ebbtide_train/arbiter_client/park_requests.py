"""`Wishes` at the arbiter: the same that `ebbtide park` and `ebbtide resume` ask for."""

from ebbtide_train.arbiter_client.link import Link

ASK_S = 5.0  # it journals within milliseconds; a ledger that hangs is given up after as long


class ParkRequests:
    """One session's. An arbiter that is away, or refuses, is asked again by the keeper's next look."""

    def __init__(self, link: Link, session: str) -> None:
        self._link, self._session = link, session

    def park(self, why: str) -> bool:
        """See `Wishes`."""
        return self._ask("park_job", self._session, why, f"session {self._session}")

    def resume(self, why: str) -> bool:
        """See `Wishes`."""
        return self._ask("resume_job", self._session, f"session {self._session}: {why}")

    def _ask(self, method: str, *args: object) -> bool:
        try:
            return self._link.call(method, *args, timeout_s=ASK_S) is not None
        except ValueError:  # refused: it is over, or the pool only observes
            return False
