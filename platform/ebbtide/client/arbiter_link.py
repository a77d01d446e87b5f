"""A handle on the arbiter that survives the arbiter's death.

Every call has a deadline and answers ``None`` when nobody answered: the caller goes on with what it knew ("fail
static", docs/promises.md) and asks again. A call that the arbiter refused on purpose (``ValueError``) does raise.

Ray is imported by the first call: it takes half a second, for which help and completion of a command would wait.
"""

import asyncio
import threading
from typing import Any

ARBITER_NAME = "arbiter"
NAMESPACE = "ebbtide"  # of every process of ours: Ray keeps the names of actors and fences per namespace
CALL_TIMEOUT_S = 2.0  # a tick takes milliseconds; an arbiter that restarts needs about 2 s (facts: 1.5-2.3 s)


class ArbiterLink:
    """Finds the arbiter by name, again after each failure. Safe to use from several threads."""

    def __init__(self, name: str = ARBITER_NAME, namespace: str = NAMESPACE) -> None:
        self._name = name
        self._namespace = namespace
        self._handle: Any = None
        self._lock = threading.Lock()

    def handle(self) -> Any:
        """The actor handle, or None while no arbiter is registered under the name."""
        import ray  # noqa: PLC0415 - see the first lines of this module
        from ray.exceptions import RayError  # noqa: PLC0415

        with self._lock:
            if self._handle is None:
                try:
                    self._handle = ray.get_actor(self._name, namespace=self._namespace)
                except (ValueError, RayError):
                    return None
            return self._handle

    def call(self, method: str, *args: object, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Call ``method`` and wait at most ``timeout_s``; None when nobody answered.

        Raises:
            ValueError: the arbiter refused; its message says why.
        """
        import ray  # noqa: PLC0415
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError  # noqa: PLC0415

        handle = self.handle()
        if handle is None:
            return None
        try:
            return ray.get(getattr(handle, method).remote(*args), timeout=timeout_s)
        except (GetTimeoutError, RayActorError):
            self._forget()
            return None
        except RayTaskError as error:
            raise _refusal(error) from None

    async def acall(self, method: str, *args: object, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """:meth:`call` for coroutines."""
        from ray.exceptions import RayActorError, RayTaskError  # noqa: PLC0415

        handle = self.handle()
        if handle is None:
            return None
        try:
            return await asyncio.wait_for(getattr(handle, method).remote(*args), timeout_s)
        except (TimeoutError, RayActorError):
            self._forget()
            return None
        except RayTaskError as error:
            raise _refusal(error) from None

    def tell(self, method: str, *args: object) -> None:
        """Call ``method`` without waiting for an answer."""
        handle = self.handle()
        if handle is not None:
            getattr(handle, method).remote(*args)

    def _forget(self) -> None:
        with self._lock:
            self._handle = None


def _refusal(error: Any) -> Exception:
    """Why a call failed, of a ``RayTaskError``."""
    cause: object = error.cause
    if isinstance(cause, ValueError):
        return cause
    failed: Exception = error
    return failed
