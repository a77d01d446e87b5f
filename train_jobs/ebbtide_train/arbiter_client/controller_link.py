"""The controller's talk with the arbiter: a thread that reports what the controller has and takes leases.

A thread of its own, because Train's control loop blocks for up to a minute while a worker group starts and the arbiter
takes silence for death. The thread alone takes a lease, at the very moment when the answer to a report of NO_GANG
brings it: so the next report says GANG, and there is never a report of NO_GANG after a lease that is still going to be
used. (The arbiter gives slots away on the strength of such a report.)

Nothing here imports Ray. Reports are numbered, since one that ran into its deadline may arrive after a later one.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from ebbtide.client.messages import ControllerOrders, ControllerPhase, ControllerReport, Lease
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.arbiter_client.report_numbers import ReportNumbers
from ebbtide_train.output_tail import TAIL_CHARS, cut_tail

REPORT_EVERY_S = 0.2  # the arbiter takes 10 s of silence for death
ERROR_CHARS = 500

_logger = logging.getLogger(__name__)


class ControllerLink:
    """What one controller tells the arbiter and is told; methods are for the control loop and never block."""

    def __init__(
        self,
        link: Link,
        *,
        job: str,
        incarnation: str,
        takes_leases: bool = True,
        kill_gang: Callable[[], None] = lambda: None,
    ) -> None:
        """``takes_leases`` False: only says that the job lives, while its controller is still starting."""
        self._link = link
        self._job, self._incarnation = job, incarnation
        self._takes_leases = takes_leases
        self._kill_gang = kill_gang
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="controller-link", daemon=True)
        self._phase = ControllerPhase.NO_GANG
        self._epoch = 0
        self._taken: Lease | None = None  # and no gang started under it yet
        self._failures, self._last_error, self._log_tail = 0, "", ""
        self._failed_epoch = 0
        self._let_go_epoch = 0
        self._durable_step = 0
        self._sequence = ReportNumbers()
        self._why, self._cancelled = "", False

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Report no more; waits for the report that is under way (2 s at most, the link's deadline)."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def cancelled(self) -> bool:
        """Whether the job is to end. Never taken back."""
        return self._cancelled

    @property
    def let_go(self) -> bool:
        """Whether the present gang is ended because its slots are needed before it trains: it has not failed."""
        with self._lock:
            return 0 < self._let_go_epoch == self._epoch

    @property
    def why(self) -> str:
        """Why the job waits, in the arbiter's words."""
        return self._why

    @property
    def has_gang(self) -> bool:
        """Whether the arbiter was told of a gang and not yet of its end."""
        return self._phase is ControllerPhase.GANG and self._taken is None

    def no_gang(self) -> None:
        """No process of the last gang is left. Does nothing when a new lease has been taken already."""
        with self._lock:
            if self._taken is not None or self._phase is ControllerPhase.NO_GANG:
                return
            self._phase = ControllerPhase.NO_GANG
        self._wake.set()

    def claim(self) -> Lease | None:
        """The lease to start a gang under now, once; None: wait."""
        with self._lock:
            lease, self._taken = self._taken, None
            return lease

    def gang_failed(self, error: str, log_tail: str = "") -> None:
        """Count a failure of the gang; ``log_tail``: what its ranks printed last."""
        with self._lock:
            self._failures += 1
            self._failed_epoch = self._epoch
            self._last_error = error[:ERROR_CHARS]
            self._log_tail = cut_tail(log_tail, TAIL_CHARS)

    def committed(self, step: int) -> None:
        """The job's published checkpoint covers ``step`` finished steps; never falls."""
        with self._lock:
            self._durable_step = max(self._durable_step, step)

    def report(self) -> ControllerReport:
        """What would be said now, but for its number."""
        with self._lock:
            return ControllerReport(
                job=self._job,
                incarnation=self._incarnation,
                phase=self._phase,
                lease_epoch=self._epoch,
                failures=self._failures,
                last_error=self._last_error,
                durable_step=self._durable_step,
                log_tail=self._log_tail,
                failed_epoch=self._failed_epoch,
            )

    def exchange(self) -> None:
        """One report and what follows from its answer."""
        said = self.report()
        orders: ControllerOrders | None = self._link.call("report_controller", replace(said, seq=self._sequence.next()))
        if orders is not None and self._follow(said, orders):
            self._kill_gang()

    def _follow(self, said: ControllerReport, orders: ControllerOrders) -> bool:
        """Take the orders in; whether the gang is to be killed."""
        with self._lock:
            self._why = orders.why
            self._cancelled = self._cancelled or orders.cancelled
            if orders.kill_gang:
                if self._taken is not None:  # nothing was started under it
                    self._taken, self._phase = None, ControllerPhase.NO_GANG
                    return False
                kill = said.phase is ControllerPhase.GANG and said.lease_epoch == self._epoch
                if kill and orders.not_failed:  # guard: a gang that is ended early has not failed
                    self._let_go_epoch = self._epoch
                return kill
            lease = orders.lease
            asked = said.phase is ControllerPhase.NO_GANG and self._phase is ControllerPhase.NO_GANG
            # An epoch that was used already is the lease of a gang that is gone: the arbiter has not heard so yet.
            if self._takes_leases and asked and lease is not None and lease.epoch > self._epoch and not self._cancelled:
                self._taken, self._epoch, self._phase = lease, lease.epoch, ControllerPhase.GANG
            return False

    def _talk(self) -> None:
        while not self._stopped.is_set():
            try:
                self.exchange()
            # The outermost loop of this thread. Whatever went wrong, state is whole (it changes under the lock only);
            # the next report says it again. Without this line an error in a message would make the job look dead.
            except Exception:
                _logger.exception("report to the arbiter failed; the next one follows")
            self._wake.wait(REPORT_EVERY_S)
            self._wake.clear()
