"""Where keys are changed and gateways are told of them: the shell around ``key_store``.

A change is journaled before any gateway hears of it. Gateways ask ten times a second and show which version they
obey; they are sent all keys when it is another than ours, so a revoked key is refused within a second everywhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from ebbtide.client.messages import GatewayOrders, KeyGrant, LimitShare, RoutingTable
from ebbtide_autoscaler.journal.key_store import KeyStore, MadeKey, create, key_record, revoke, rotate, row

Write = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Makes a record durable; returns when it is."""


class KeyChanges:
    """The keys of one pool. ``book`` and ``version`` are replaced whole and may be read from any thread."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._changing = asyncio.Lock()
        self._endpoints: frozenset[str] | None = None  # None: no file is in force yet
        self._issued: tuple[int, KeyStore] = (0, KeyStore())

    @property
    def book(self) -> KeyStore:
        """All keys."""
        return self._issued[1]

    def recover(self, made: Mapping[str, MadeKey], epoch: int) -> None:
        """Take over what the ledger says; versions of a later epoch are higher than all before."""
        # guard: a new arbiter's version of the keys is higher
        self._issued = (epoch * 1_000_000, replace(self.book, made=dict(made)))

    def obey(self, grants: tuple[KeyGrant, ...], endpoints: frozenset[str]) -> None:
        """Another file is in force.

        Raises:
            ValueError: it names a key that the command has made; nothing was changed.
        """
        book = self.book.with_file(grants)
        self._endpoints = endpoints
        self._issue(book)

    def _issue(self, book: KeyStore) -> None:
        version, before = self._issued
        if book != before or version % 1_000_000 == 0:
            self._issued = (version + 1, book)

    def orders(self, keys_seen: int, routes: RoutingTable | None, share: LimitShare | None) -> GatewayOrders:
        """The answer to a gateway that obeys the keys ``keys_seen``."""
        version, book = self._issued
        if self._endpoints is None:  # guard: before a file is in force no keys are known
            return GatewayOrders(routes=routes, share=share)
        keys = None if keys_seen == version else book.grants(time.time())
        return GatewayOrders(routes=routes, keys_version=version, keys=keys, share=share)

    # ---- by people; each answers with the key's row

    async def create(self, grant: KeyGrant) -> dict[str, Any]:
        """Make a key.

        Raises:
            ValueError: refused; the message says why.
        """
        return await self._change(lambda book, now_s: create(book, grant, self._endpoints or frozenset(), now_s))

    async def rotate(self, name: str, sha256: str, grace_s: float) -> dict[str, Any]:
        """Give a key another secret; same errors."""
        return await self._change(lambda book, now_s: rotate(book, name, sha256, grace_s, now_s))

    async def revoke(self, name: str) -> dict[str, Any]:
        """Close a key for good; ``changed``: False, it was revoked already. Same errors."""
        before: list[MadeKey | None] = []

        def change(book: KeyStore, _now_s: float) -> MadeKey:
            before.append(book.made.get(name))
            return revoke(book, name)

        found = await self._change(change)
        return found | {"changed": not any(made is not None and made.grant.revoked for made in before)}

    async def _change(self, change: Callable[[KeyStore, float], MadeKey]) -> dict[str, Any]:
        async with self._changing:  # guard: changes of keys at the same time lose none
            if self._endpoints is None:
                raise ValueError("no file is in force yet; run `ebbtide up FILE`")
            now_s = time.time()
            made = change(self.book, now_s)
            if self.book.made.get(made.grant.name) != made:
                await self._write(key_record(made, now_s))  # guard: no gateway hears of a key that is not journaled
                self._issue(self.book.with_made(made))
            return row(made, now_s)
