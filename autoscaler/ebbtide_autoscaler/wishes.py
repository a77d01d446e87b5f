"""What people ask for: done when it is journaled, refused with the reason while the ledger hangs.

Every method waits, but not for ever, and raises ValueError, which the command prints: it cannot be done, and nothing
was changed; or the ledger does not answer. Called from many threads.
"""

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ebbtide.client.messages import KeyGrant
from ebbtide.config.root import PoolFile
from ebbtide.pool.events import Body, CancelJob, NodeDraining, NodeUndrained, PoolFrozen, PoolUnfrozen
from ebbtide.pool.ids import JobName, NodeId
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.loop import Loop

TAKE_S = 5.0  # what a person asks for is journaled within milliseconds, or the ledger hangs
CONFIG_S = 30.0  # the same, and a first start of Serve: 3-14 s on 2 cores (facts/ray.md)
KEY_CHANGE_S = 10.0  # an fsync takes milliseconds; while the ledger hangs nothing changes


class Wishes:
    """Takes them, for one pool."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def cancel(self, name: JobName, reason: str) -> None:
        """End a job at its next safe point; one whose driver was lost is over at once, and is not submitted again.

        Raises:
            ValueError: no such job is alive, or waits to be restored; or the ledger does not answer.
        """
        self._loop.must_be_open()
        known = self._loop.world.state.jobs.get(name)
        if known is not None and known.state is JobState.ENDED and known.outcome.startswith("lost:"):
            if not known.cancelled:
                self._take(CancelJob(name, reason), lambda state: state.jobs[name].cancelled)
            self._loop.forget_submission(name)
            return
        if known is None or known.state is JobState.ENDED:
            raise ValueError(f"no job {name} is alive, and none that was lost waits to be restored")
        if not known.cancelled:
            self._loop.submit(CancelJob(name, reason))

    def cancel_submission(self, name: JobName, incarnation: str, reason: str) -> None:
        """End a job because its driver was told to stop.

        A driver that was silent for too long is stopped by the pool itself, which then submits the job again: what such
        a driver asks for is not its author's wish.

        Raises:
            ValueError: that submission is over, or was lost.
        """
        known = self._loop.world.state.jobs.get(name)
        if known is None or known.incarnation != incarnation or known.state is JobState.ENDED:
            raise ValueError(f"this submission of job {name} is over already")
        self.cancel(name, reason)

    def freeze(self, reason: str) -> None:
        """Stop all decisions until :meth:`unfreeze`; outlives a restart of the arbiter.

        Raises:
            ValueError: it is frozen already, or the ledger does not answer.
        """
        self._loop.must_be_open()
        state = self._loop.world.state
        if state.frozen:
            raise ValueError(f"the pool is frozen already: {state.frozen}")
        self._take(PoolFrozen(reason), lambda state: bool(state.frozen))

    def unfreeze(self) -> None:
        """Decide again. Same errors."""
        self._loop.must_be_open()
        if not self._loop.world.state.frozen:
            raise ValueError("the pool is not frozen by a person")
        self._take(PoolUnfrozen(), lambda state: not state.frozen)

    def drain(self, node: NodeId, reason: str) -> None:
        """Have everything leave a node, in good order, and grant nothing there. Same errors."""
        self._loop.must_be_open()
        state = self._loop.world.state
        if node not in state.nodes:
            raise ValueError(f"node {node} is not in the pool")
        if state.draining.get(node) != reason:
            self._take(NodeDraining(node, reason), lambda state: state.draining.get(node) == reason)

    def undrain(self, node: NodeId) -> None:
        """Use a node again. Same errors."""
        self._loop.must_be_open()
        if node not in self._loop.world.state.draining:
            raise ValueError(f"node {node} is not draining")
        self._take(NodeUndrained(node), lambda state: node not in state.draining)

    def _take(self, body: Body, holds: Callable[[PoolState], bool]) -> None:
        """Submit what a person asked for and wait, but not for ever, until the ledger has it."""
        self._loop.submit(body)
        deadline_s = time.monotonic() + TAKE_S
        while not holds(self._loop.world.state):
            if time.monotonic() > deadline_s:
                withdrawn = self._loop.withdraw(body)
                why = self._loop.frozen or "the arbiter is busy"
                left = "nothing was changed" if withdrawn else "it comes into force if the ledger takes it after all"
                raise ValueError(f"not journaled within {TAKE_S:g} s: {why}; {left}")
            time.sleep(0.02)

    # ---- the file

    def apply_config(self, config_json: str) -> dict[str, Any]:
        """Make the pool agree with a file; waits until it is journaled and the gateway was told.

        Raises:
            ValueError: the file cannot be put into force, and nothing was changed; or the ledger does not answer.
        """
        done: Future[dict[str, Any]] = self._loop.configure(PoolFile.model_validate_json(config_json))
        try:
            return done.result(timeout=CONFIG_S)
        except FutureTimeout:
            raise ValueError(
                f"the ledger has not taken the file within {CONFIG_S:g} s ({self._loop.frozen or 'it is slow'}); the "
                "file before it is in force until it does: see `ebbtide status`, and run `ebbtide up` again"
            ) from None

    # ---- keys; each method answers with the key's row

    def create_key(self, grant: KeyGrant) -> dict[str, Any]:
        """Make an API key; every gateway takes it within a second.

        Raises:
            ValueError: refused; the message says why.
        """
        return self._key_change(self._loop.keys.create(grant))

    def rotate_key(self, name: str, sha256: str, grace_s: float) -> dict[str, Any]:
        """Give a key another secret; the old one stays good for ``grace_s``. Same errors."""
        return self._key_change(self._loop.keys.rotate(name, sha256, grace_s))

    def revoke_key(self, name: str) -> dict[str, Any]:
        """Close a key for good; every gateway refuses it within a second. Same errors."""
        return self._key_change(self._loop.keys.revoke(name))

    def _key_change(self, change: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        try:
            return self._loop.change_keys(change).result(timeout=KEY_CHANGE_S)
        except FutureTimeout:
            raise ValueError(
                f"not journaled within {KEY_CHANGE_S:g} s ({self._loop.frozen or 'the arbiter is busy'}); "
                "it comes into force if the ledger takes it after all: see `ebbtide keys list`"
            ) from None
