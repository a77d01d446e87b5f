"""API keys: who asks, what they may, and how much of it.

Keys come with the arbiter's orders. A gateway that has heard none yet lets nobody in (503); one whose arbiter is away
goes by those that it has. Tokens are not known before the answer: a request is let in while there are any left, an
estimate (a quarter of the body's bytes, and ``max_tokens``) is taken at once, and the difference to what was really
used is settled at the end. So a key can overdraw by one request's error, never by a burst.

Gateways that share a limit do not tell each other what is left: each has its part, and the parts of a limit on
concurrent requests make up the whole, so that with more gateways than requests some have none.

Not guaranteed: while a gateway comes or goes, for as long as the others have not heard of it, the parts are not yet
or no longer those of one whole.
"""

import hashlib
from dataclasses import dataclass, field

from ebbtide.client.messages import KeyGrant, LimitShare
from ebbtide_serve.gateway.admission.token_bucket import TokenBucket
from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import Refusal, too_busy, unavailable

BYTES_PER_TOKEN = 4  # English text in current tokenizers; only an estimate until the answer says
NEVER_HEARD = -1


@dataclass
class _Use:
    """What one key has used; survives a change of its secret and of other limits."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    inflight: int = 0


@dataclass
class Admission:
    """One request that was let in. ``close`` it when the request has ended."""

    key: str = ""  # its name; "" when the gateway is open
    _use: _Use | None = None
    _clock: Clock | None = None
    prompt_estimate: int = 0
    _max_tokens: int = 0
    _closed: bool = field(default=False, init=False)

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit depends on how many tokens were used."""
        return self._use is not None and self._use.tokens is not None

    def headers(self) -> dict[str, str]:
        """How much is left, in the headers that OpenAI sends."""
        if self._use is None or self._clock is None:
            return {}
        return _left(self._use, _now_ns(self._clock))

    def close(self, tokens_used: int | None) -> None:
        """Give back the place and settle the tokens; None: unknown, the estimate stands."""
        if (
            self._closed  # guard: an admission is closed once
            or self._use is None
            or self._clock is None
        ):
            return
        self._closed = True
        self._use.inflight -= 1  # guard: the place of a key comes back when its request has ended
        if self._use.tokens is not None and tokens_used is not None:
            # guard: tokens are settled by what was used
            self._use.tokens.take(tokens_used - self.prompt_estimate - self._max_tokens, _now_ns(self._clock))


class KeyRing:
    """The keys and their use.

    Args:
        may_be_open: whether a pool without any key lets everybody in; only where nobody but this machine can ask.
    """

    def __init__(self, clock: Clock, *, may_be_open: bool) -> None:
        self.version = NEVER_HEARD
        self._clock = clock
        self._may_be_open = may_be_open
        self._share = LimitShare(0, 1)
        self._uses: dict[str, _Use] = {}
        self._by_digest: dict[str, KeyGrant] = {}

    def replace(self, version: int, keys: tuple[KeyGrant, ...]) -> None:
        """Obey ``keys`` from now on. What a key has used stays, unless its limit changed."""
        now_ns = _now_ns(self._clock)
        uses: dict[str, _Use] = {}
        for key in keys:
            use = uses[key.name] = self._uses.get(key.name, _Use())
            use.requests = self._kept(use.requests, key.requests_per_minute, now_ns)
            use.tokens = self._kept(use.tokens, key.tokens_per_minute, now_ns)
        self._by_digest = {key.sha256.lower(): key for key in keys}
        self._uses, self.version = uses, version

    def share(self, share: LimitShare) -> None:
        """This gateway has that part of every limit."""
        was, self._share = self._share, share
        if share.gateways != was.gateways:
            for use in self._uses.values():
                for bucket in (use.requests, use.tokens):
                    if bucket is not None:
                        bucket.share(share.gateways)  # guard: gateways share a limit

    def _kept(self, bucket: TokenBucket | None, per_minute: int | None, now_ns: int) -> TokenBucket | None:
        if per_minute is None:
            return None
        same = bucket is not None and bucket.per_minute == per_minute
        # guard: what a key has used survives new orders
        return bucket if same else TokenBucket(per_minute, self._share.gateways, now_ns)

    def authenticate(self, authorization: str | None) -> KeyGrant | None:
        """The key of a request; None when the gateway is open.

        Raises:
            Refusal: 401, or 503 when no keys were heard of yet.
        """
        if self.version == NEVER_HEARD:  # guard: before any keys were heard of all requests are a 503
            raise unavailable("This gateway has just started and does not know the keys yet.", code="no_keys_yet")
        if (
            not self._by_digest
            # guard: a gateway without keys is open on loopback only
            # guard: the bind address says whether a gateway may be open
            and self._may_be_open
        ):
            return None
        scheme, _, secret = (authorization or "").partition(" ")
        if (
            scheme.lower() != "bearer"  # guard: only the scheme Bearer opens
            or not secret.strip()
        ):
            raise _unauthorized("No API key was given: send 'Authorization: Bearer <key>'.")
        # The time that the look-up takes may tell about digests, and a digest tells nothing about a secret of 128 bits.
        found = self._by_digest.get(hashlib.sha256(secret.strip().encode()).hexdigest())
        if found is None:  # guard: an unknown key is a 401
            raise _unauthorized("The API key is not known here.")
        if found.revoked:  # guard: a revoked key is a 401
            raise _unauthorized("The API key was revoked.")
        if found.expires_s is not None and found.expires_s <= self._clock.epoch_s():  # guard: an expired key is a 401
            raise _unauthorized("The API key has expired.")
        return found

    def admit(self, key: KeyGrant | None, *, body_bytes: int, max_tokens: int) -> Admission:
        """Count one request against its key's limits.

        Raises:
            Refusal: 429 with Retry-After; nothing was counted.
        """
        use = None if key is None else self._uses.get(key.name)
        if (
            key is None
            # guard: a key that is taken away while its body comes harms nothing
            or use is None
        ):
            return Admission(key.name if key else "")
        now_ns = _now_ns(self._clock)
        streams = key.concurrent_streams
        if (
            streams is not None
            # guard: requests at once are bounded; gateways share the limit on concurrent requests
            and use.inflight >= self._share.of(streams)
        ):
            refusal = _limited(key, "concurrent_streams", streams, 10**9, use, now_ns)
            refusal.message += self._how_shared(streams)
            raise refusal
        if use.tokens is not None and use.tokens.left(now_ns) < 1:  # guard: tokens per minute are bounded
            wait_ns = use.tokens.wait_ns(1, now_ns)
            raise _limited(key, "tokens_per_minute", use.tokens.per_minute, wait_ns, use, now_ns)
        if use.requests is not None:
            wait_ns = use.requests.wait_ns(1, now_ns)
            if wait_ns:  # guard: requests per minute are bounded
                raise _limited(key, "requests_per_minute", use.requests.per_minute, wait_ns, use, now_ns)
            use.requests.take(1, now_ns)
        prompt_estimate = body_bytes // BYTES_PER_TOKEN
        if use.tokens is not None:
            use.tokens.take(prompt_estimate + max_tokens, now_ns)  # guard: tokens are taken at once, by estimate
        use.inflight += 1
        return Admission(key.name, use, self._clock, prompt_estimate, max_tokens)

    def _how_shared(self, streams: int) -> str:
        """How the limit is shared, for who is refused; "" if it is not."""
        part, gateways = self._share.of(streams), self._share.gateways
        if gateways == 1:
            return ""
        if part:
            return f" {gateways} gateways share it, and this one's part is {part}."
        return f" {gateways} gateways share it, and this one has no part of it: another one may let the request in."


def check_scope(key: KeyGrant | None, scope: str) -> None:
    """Whether ``key`` may do this kind of thing at all.

    Raises:
        Refusal: 403.
    """
    if key is not None and scope not in key.scopes:
        raise Refusal(403, f"The API key {key.name!r} lacks the scope {scope!r}.", "permission_error", "missing_scope")


def check_endpoint(key: KeyGrant | None, endpoint: str) -> None:
    """Whether ``key`` may use ``endpoint``.

    Raises:
        Refusal: 403.
    """
    if key is not None and key.endpoints is not None and endpoint not in key.endpoints:
        message = f"The API key {key.name!r} may not use the model {endpoint!r}."
        raise Refusal(403, message, "permission_error", "model_not_allowed", "model")


def _now_ns(clock: Clock) -> int:
    return round(clock.monotonic_s() * 1e9)


def _unauthorized(message: str) -> Refusal:
    return Refusal(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="ebbtide"'},
    )


def _limited(key: KeyGrant, limit: str, value: int, wait_ns: int, use: _Use, now_ns: int) -> Refusal:
    refusal = too_busy(
        f"The API key {key.name!r} has reached its limit {limit}={value}.",
        code="rate_limit_exceeded",
        retry_after_s=wait_ns / 1e9,
    )
    refusal.kind = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}.get(limit, refusal.kind)
    refusal.headers = {**refusal.headers, **_left(use, now_ns)}
    return refusal


def _left(use: _Use, now_ns: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    for kind, bucket in (("requests", use.requests), ("tokens", use.tokens)):
        if bucket is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, bucket.left(now_ns)))
            headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.full_in_ns(now_ns))
    return headers


def duration(ns: int) -> str:
    """As OpenAI writes it: ``120ms``, ``1.5s``, ``6m0s``."""
    ms = -(-ns // 10**6)
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    return f"{minutes}m{rest_ms / 1000:g}s" if minutes else f"{rest_ms / 1000:g}s"
