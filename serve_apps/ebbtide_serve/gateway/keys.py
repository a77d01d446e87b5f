"""API keys: who asks, what they may, and how much of it.

Limits are token buckets that fill evenly over a minute and start full. Tokens are not known before the answer: a
request is let in while the bucket is above zero, an estimate (a quarter of the body's bytes, and ``max_tokens``) is
taken at once, and the difference to what was really used is settled at the end. So a key can overdraw by one request's
error, never by a burst.

Not guaranteed: limits are this gateway's; two gateways let twice as much through.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from ebbtide_serve.gateway.clock import Clock
from ebbtide_serve.gateway.errors import Refusal, too_busy
from ebbtide_serve.gateway.settings import ApiKey

BYTES_PER_TOKEN = 4  # English text in current tokenizers; only an estimate until the answer says


class _Bucket:
    """Fills evenly to ``per_minute``; may go below zero."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled_s = now_s

    def level(self, now_s: float) -> float:
        grown = (now_s - self._filled_s) * self.per_minute / 60
        self._level = min(float(self.per_minute), self._level + grown)
        self._filled_s = now_s
        return self._level

    def take(self, amount: float, now_s: float) -> None:
        self._level = min(float(self.per_minute), self.level(now_s) - amount)

    def wait_s(self, needed: float, now_s: float) -> float:
        """Seconds until ``needed`` is there, to the microsecond: who comes back then must not miss by a rounding."""
        return max(0.0, round((needed - self.level(now_s)) * 60 / self.per_minute, 6))


@dataclass
class _Use:
    """What one key has used; survives a change of its limits."""

    requests: _Bucket | None = None
    tokens: _Bucket | None = None
    inflight: int = 0


@dataclass
class Admission:
    """One request that was let in. ``close`` it when the request has ended."""

    _use: _Use | None = None
    _clock: Clock | None = None
    prompt_estimate: int = 0
    _max_tokens: int = 0
    _closed: bool = field(default=False, init=False)

    @property
    def counts_tokens(self) -> bool:
        """Whether anybody wants to know how many tokens were used."""
        return self._use is not None and self._use.tokens is not None

    def close(self, tokens_used: int | None) -> None:
        """Give back the place and settle the tokens; None: unknown, the estimate stands."""
        if self._closed or self._use is None or self._clock is None:
            return
        self._closed = True
        self._use.inflight -= 1
        if self._use.tokens is not None and tokens_used is not None:
            self._use.tokens.take(tokens_used - self.prompt_estimate - self._max_tokens, self._clock.monotonic_s())


class KeyRing:
    """The keys and their use. Without any key the gateway is open (its settings allow that on loopback only)."""

    def __init__(self, keys: tuple[ApiKey, ...], clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self._keys: tuple[ApiKey, ...] = ()
        self.replace(keys)

    def replace(self, keys: tuple[ApiKey, ...]) -> None:
        """Obey ``keys`` from now on. What a key has used stays, unless its limit changed."""
        now_s = self._clock.monotonic_s()
        uses: dict[str, _Use] = {}
        for key in keys:
            use = uses[key.name] = self._uses.get(key.name, _Use())
            use.requests = _kept(use.requests, key.requests_per_minute, now_s)
            use.tokens = _kept(use.tokens, key.tokens_per_minute, now_s)
        self._keys, self._uses = keys, uses

    def authenticate(self, authorization: str | None) -> ApiKey | None:
        """The key of a request; None when the gateway is open.

        Raises:
            Refusal: 401.
        """
        if not self._keys:
            return None
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise _unauthorized("No API key was given: send 'Authorization: Bearer <key>'.")
        digest = hashlib.sha256(secret.strip().encode()).hexdigest()
        found = None
        for key in self._keys:  # all of them, always: the time tells nothing about which one matched
            if hmac.compare_digest(digest, key.sha256.lower()):
                found = key
        if found is None:
            raise _unauthorized("The API key is not known here.")
        if found.revoked:
            raise _unauthorized("The API key was revoked.")
        return found

    def admit(self, key: ApiKey | None, *, body_bytes: int, max_tokens: int) -> Admission:
        """Count one request against its key's limits.

        Raises:
            Refusal: 429 with Retry-After; nothing was counted.
        """
        if key is None:
            return Admission()
        use, now_s = self._uses[key.name], self._clock.monotonic_s()
        if key.concurrent_streams is not None and use.inflight >= key.concurrent_streams:
            raise _limited(key, "concurrent_streams", key.concurrent_streams, 1.0)
        if use.tokens is not None and use.tokens.level(now_s) <= 0:
            raise _limited(key, "tokens_per_minute", use.tokens.per_minute, use.tokens.wait_s(1, now_s))
        if use.requests is not None:
            wait_s = use.requests.wait_s(1, now_s)
            if wait_s > 0:
                raise _limited(key, "requests_per_minute", use.requests.per_minute, wait_s)
            use.requests.take(1, now_s)
        prompt_estimate = body_bytes // BYTES_PER_TOKEN
        if use.tokens is not None:
            use.tokens.take(prompt_estimate + max_tokens, now_s)
        use.inflight += 1
        return Admission(use, self._clock, prompt_estimate, max_tokens)


def check_scope(key: ApiKey | None, scope: str) -> None:
    """Whether ``key`` may do this kind of thing at all.

    Raises:
        Refusal: 403.
    """
    if key is not None and scope not in key.scopes:
        raise Refusal(403, f"The API key {key.name!r} lacks the scope {scope!r}.", "permission_error", "missing_scope")


def check_endpoint(key: ApiKey | None, endpoint: str) -> None:
    """Whether ``key`` may use ``endpoint``.

    Raises:
        Refusal: 403.
    """
    if key is not None and key.endpoints is not None and endpoint not in key.endpoints:
        message = f"The API key {key.name!r} may not use the model {endpoint!r}."
        raise Refusal(403, message, "permission_error", "model_not_allowed", "model")


def _kept(bucket: _Bucket | None, per_minute: int | None, now_s: float) -> _Bucket | None:
    if per_minute is None:
        return None
    return bucket if bucket is not None and bucket.per_minute == per_minute else _Bucket(per_minute, now_s)


def _unauthorized(message: str) -> Refusal:
    return Refusal(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="ebbtide"'},
    )


def _limited(key: ApiKey, limit: str, value: int, wait_s: float) -> Refusal:
    return too_busy(
        f"The API key {key.name!r} has reached its limit {limit}={value}.",
        code="rate_limit_exceeded",
        retry_after_s=wait_s,
    )
