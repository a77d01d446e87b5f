"""The one call that this room needs of the arbiter's link, so that tests can put a fake in its place."""

from typing import Any, Protocol


class Link(Protocol):
    """See ``ebbtide.client.arbiter_link.ArbiterLink``."""

    def call(self, method: str, *args: object, timeout_s: float = ...) -> Any:
        """Call the arbiter; None when nobody answered in time. Raises ValueError when it refused."""
