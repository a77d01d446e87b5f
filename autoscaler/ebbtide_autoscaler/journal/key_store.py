"""The API keys in force: those of the pool's file and those made by `ebbtide keys`. Pure.

A key of the file is changed in the file; a made one by the command, and each change is one record in the ledger that
says the key's whole state, so that replaying records twice does no harm. Only the SHA-256 of a secret is ever here.

While a rotated key's grace runs, the old secret stands beside the new one under the same name: they share its limits.
A revoked key stays listed, and its name is never given again: a name in a log must mean one key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from ebbtide.client.messages import KeyGrant
from ebbtide.config.suggestions import did_you_mean

MADE_MAX = 10_000  # every gateway is told all of them; far above what one pool's teams need
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)  # as the names of the file


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key made by the command."""

    grant: KeyGrant
    made_s: float  # seconds since 1970, as all times here
    old_sha256: str = ""  # of the secret before the last rotation
    old_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyStore:
    """All keys, by name."""

    file: Mapping[str, KeyGrant] = field(default_factory=dict)
    made: Mapping[str, MadeKey] = field(default_factory=dict)

    def grants(self, now_s: float) -> tuple[KeyGrant, ...]:
        """What gateways obey."""
        found = [*self.file.values()]
        for made in self.made.values():
            found.append(made.grant)
            if (
                made.old_sha256
                # guard: an old secret never outlives its grace
                and made.old_until_s > now_s
            ):
                # guard: an old secret never outlives its key
                until_s = min(made.old_until_s, made.grant.expires_s or made.old_until_s)
                found.append(replace(made.grant, sha256=made.old_sha256, expires_s=until_s))
        return tuple(found)

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """For people and scripts: everything but the digests."""
        of_file = [_row(grant, now_s) | {"from": "file"} for grant in self.file.values()]
        return of_file + [row(made, now_s) for made in self.made.values()]

    def with_made(self, made: MadeKey) -> "KeyStore":
        """The book with this key as it is now."""
        return replace(self, made={**self.made, made.grant.name: made})

    def with_file(self, grants: tuple[KeyGrant, ...]) -> "KeyStore":
        """The book under another file.

        Raises:
            ValueError: the file names a key that the command has made.
        """
        for grant in grants:
            if grant.name in self.made:  # guard: a file cannot take the name of a made key
                raise ValueError(
                    f"the key {grant.name!r} was made by `ebbtide keys`; give the one of the file another name"
                )
        return replace(self, file={grant.name: grant for grant in grants})


def create(book: KeyStore, grant: KeyGrant, endpoints: frozenset[str], now_s: float) -> MadeKey:
    """A new key.

    Raises:
        ValueError: it cannot be; the message says why.
    """
    if not _NAME.fullmatch(grant.name):
        raise ValueError(f"{grant.name!r} is no name for a key: lower-case letters, digits, '.', '_', '-'; at most 63")
    if grant.name in book.file:  # guard: a name of the file is the file's
        raise ValueError(f"the key {grant.name!r} is in the pool's file; choose another name")
    if grant.name in book.made:  # guard: a key's name is given once
        again = "was revoked, and its name stays taken" if book.made[grant.name].grant.revoked else "exists"
        raise ValueError(f"the key {grant.name!r} {again}; choose another name, or rotate it")
    if len(book.made) >= MADE_MAX:
        raise ValueError(f"there are {MADE_MAX} keys already")
    unknown = sorted(set(grant.endpoints or ()) - endpoints)
    if unknown:  # guard: a key names endpoints that there are
        raise ValueError(f"there is no endpoint {unknown[0]!r}; there are: {', '.join(sorted(endpoints)) or 'none'}")
    if grant.expires_s is not None and grant.expires_s <= now_s:
        raise ValueError(f"the key {grant.name!r} would have expired already")
    return MadeKey(grant, now_s)


def rotate(book: KeyStore, name: str, sha256: str, grace_s: float, now_s: float) -> MadeKey:
    """The key under a new secret; the old one stays good for ``grace_s``, one older than that does not.

    Raises:
        ValueError: no such key, or not one of the command's, or it is over.
    """
    made = _made(book, name)
    if made.grant.revoked:  # guard: a revoked key gets no new secret
        raise ValueError(f"the key {name!r} was revoked; create another")
    if made.grant.expires_s is not None and made.grant.expires_s <= now_s:
        raise ValueError(f"the key {name!r} has expired; create another")
    return replace(
        made,
        grant=replace(made.grant, sha256=sha256),
        old_sha256=made.grant.sha256 if grace_s > 0 else "",
        old_until_s=now_s + grace_s,
    )


def revoke(book: KeyStore, name: str) -> MadeKey:
    """The key, closed for good, with the secret that a rotation may have left; revoking twice changes nothing.

    Raises:
        ValueError: no such key, or not one of the command's.
    """
    made = _made(book, name)
    return replace(made, grant=replace(made.grant, revoked=True), old_sha256="", old_until_s=0.0)


def _made(book: KeyStore, name: str) -> MadeKey:
    if name in book.file:  # guard: a key of the file is changed in the file
        raise ValueError(f"the key {name!r} stands in the pool's file: change it there and run `ebbtide up`")
    if name not in book.made:
        meant = did_you_mean(name, book.made)
        raise ValueError(f"there is no key {name!r}; {f'{meant} ' if meant else ''}`ebbtide keys list` shows all")
    return book.made[name]


def row(made: MadeKey, now_s: float) -> dict[str, Any]:
    """A made key for people and scripts."""
    old = {"old_secret_until_at_s": made.old_until_s} if made.old_sha256 and made.old_until_s > now_s else {}
    return _row(made.grant, now_s) | {"from": "command", "made_at_s": made.made_s} | old


def _row(grant: KeyGrant, now_s: float) -> dict[str, Any]:
    over = grant.expires_s is not None and grant.expires_s <= now_s
    return {
        "name": grant.name,
        "state": "revoked" if grant.revoked else "expired" if over else "good",
        "scopes": list(grant.scopes),
        "endpoints": "all" if grant.endpoints is None else list(grant.endpoints),
        "requests_per_minute": grant.requests_per_minute,
        "tokens_per_minute": grant.tokens_per_minute,
        "concurrent_streams": grant.concurrent_streams,
        "expires_at_s": grant.expires_s,
    }


# ---- in the ledger

_MADE: TypeAdapter[MadeKey] = TypeAdapter(MadeKey)


def key_record(made: MadeKey, at_s: float) -> dict[str, Any]:
    """The record that says the key's whole state."""
    return {"type": "key", "at_s": at_s, "key": _MADE.dump_python(made, mode="json")}


def recovered_key(payload: Mapping[str, Any]) -> MadeKey:
    """The key of a record of type "key"."""
    return _MADE.validate_python(payload["key"])
