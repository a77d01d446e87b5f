"""Which nodes run other code than this arbiter, as their agents say. Nothing here waits."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayActorError, RayError

from ebbtide.pool.ids import NodeId
from ebbtide.system.code_digest import code_digest

ANOTHER = "another version of ebbtide, or none"  # in which the agent, as it is here, cannot be had
NO_CLASS = "failed to import on the worker"  # in Ray's words

log = logging.getLogger(__name__)


class NodeCodes:
    """One instance per arbiter. ``refused``: nodes with other code, with why; replaced whole, for any thread."""

    def __init__(self) -> None:
        self.refused: Mapping[NodeId, str] = {}
        self._ours = code_digest()
        self._said: dict[NodeId, Future[str]] = {}

    def look(self, agents: Mapping[NodeId, Any]) -> None:
        """Ask agents that have not said yet, and take in what was said; a node that is asked stays as it was."""
        refused = {node: why for node, why in self.refused.items() if node in agents}
        for node, agent in agents.items():
            said = self._said.get(node) or self._ask(node, agent)
            if said is None or not said.done():
                continue
            theirs = self._other(said)
            if theirs is None:  # it died, or its node did: it is asked again
                self._said.pop(node, None)
            elif theirs == self._ours:
                refused.pop(node, None)
            else:
                refused[node] = f"it runs {theirs}; the arbiter runs ebbtide code {self._ours}: install the same"
        for node in refused.keys() - self.refused.keys():
            log.error("node %s is refused: %s", node, refused[node])
        self.refused = refused

    def ask_again(self, node: NodeId) -> None:
        """Another process may answer there by now, of other code."""
        self._said.pop(node, None)

    def _ask(self, node: NodeId, agent: Any) -> "Future[str] | None":
        try:
            said: Future[str] = agent.code.remote().future()
        except AttributeError:  # an actor that an earlier version started, and that still runs
            said = Future()
            said.set_result(ANOTHER)
        except (RayError, ValueError):
            return None  # it hangs, or is gone: it is asked at the next look
        self._said[node] = said
        return said

    def _other(self, said: "Future[str]") -> str | None:
        """What it runs, ours included; None: it has not said."""
        error = said.exception()
        if error is None:
            return said.result() if said.result() in (ANOTHER, self._ours) else f"ebbtide code {said.result()}"
        if isinstance(error, RayActorError) and error.actor_init_failed:
            return ANOTHER if NO_CLASS in str(error) else f"an agent that cannot start ({_last_line(error)})"
        return None


def _last_line(error: BaseException) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
