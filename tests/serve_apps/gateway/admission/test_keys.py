"""Limits by a clock that stands still until told."""

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ebbtide.client.messages import KeyGrant, LimitShare
from ebbtide_serve.gateway.admission.keys import Admission, KeyRing, duration
from ebbtide_serve.gateway.admission.token_bucket import TokenBucket
from ebbtide_serve.gateway.errors import Refusal
from tests.examples import examples


@dataclass
class StillClock:
    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return self.now_s


def grant(secret: bytes = b"secret", name: str = "k", **fields: object) -> KeyGrant:
    digest = hashlib.sha256(secret).hexdigest()
    return KeyGrant(**({"name": name, "sha256": digest, "scopes": ("models", "generate")} | fields))  # type: ignore[arg-type]


def ring(clock: StillClock, **limits: int | None) -> tuple[KeyRing, KeyGrant]:
    key = grant(**limits)  # type: ignore[arg-type]
    keys = KeyRing(clock, may_be_open=True)
    keys.replace(1, (key,))
    return keys, key


def ask(keys: KeyRing, key: KeyGrant | None, *, max_tokens: int = 0) -> Admission:
    return keys.admit(key, body_bytes=40, max_tokens=max_tokens)


def refusal(keys: KeyRing, key: KeyGrant) -> Refusal:
    with pytest.raises(Refusal) as refused:
        ask(keys, key)
    assert refused.value.status == 429
    return refused.value


def retry_after_s(keys: KeyRing, key: KeyGrant) -> int:
    return int(refusal(keys, key).headers["retry-after"])


@pytest.mark.proves("a 429 says when to come back", "requests per minute are bounded")
def test_requests_per_minute_fill_evenly_and_retry_after_is_when_the_next_one_is_taken() -> None:
    clock = StillClock()
    keys, key = ring(clock, requests_per_minute=3)
    for _ in range(3):
        ask(keys, key)
    wait_s = retry_after_s(keys, key)
    assert wait_s == 20
    clock.now_s += wait_s - 1
    assert retry_after_s(keys, key) == 1
    clock.now_s += 1
    ask(keys, key)
    clock.now_s += 3600  # an idle hour saves up no more than a minute's worth
    for _ in range(3):
        ask(keys, key)
    retry_after_s(keys, key)


@pytest.mark.proves(
    "Retry-After is never too early",
    "an admission is closed once",
    "tokens are settled by what was used",
    "tokens are taken at once, by estimate",
    "tokens per minute are bounded",
)
def test_tokens_are_taken_by_estimate_and_settled_by_use() -> None:
    clock = StillClock()
    keys, key = ring(clock, tokens_per_minute=100)
    first = ask(keys, key, max_tokens=150)  # 10 for the prompt, 150 wanted: 60 in debt
    assert retry_after_s(keys, key) == 37  # 61 tokens at 100 a minute
    first.close(30)  # 70 are left
    first.close(0)  # a second close changes nothing
    second = ask(keys, key, max_tokens=0)  # 60
    second.close(80)  # in debt by 10, though the estimate was far less
    assert retry_after_s(keys, key) == 7
    clock.now_s += 6.6
    ask(keys, key).close(None)  # unknown: the estimate stands
    assert retry_after_s(keys, key) == 6


@pytest.mark.proves("requests at once are bounded", "the place of a key comes back when its request has ended")
def test_places_in_flight_are_counted_until_they_are_closed_once() -> None:
    keys, key = ring(StillClock(), concurrent_streams=2)
    first, _ = ask(keys, key), ask(keys, key)
    assert retry_after_s(keys, key) == 1
    first.close(None)
    first.close(None)
    ask(keys, key)
    assert retry_after_s(keys, key) == 1


def test_a_refused_request_costs_nothing() -> None:
    clock = StillClock()
    keys, key = ring(clock, requests_per_minute=1, tokens_per_minute=100)
    ask(keys, key).close(10)
    for _ in range(50):
        retry_after_s(keys, key)
    clock.now_s += 60
    ask(keys, key)


@pytest.mark.proves("what a key has used survives new orders")
def test_what_a_key_has_used_survives_new_orders_and_a_new_secret() -> None:
    keys, key = ring(StillClock(), requests_per_minute=1)
    ask(keys, key)
    keys.replace(2, (key,))
    retry_after_s(keys, key)
    rotated, old = grant(b"newer", requests_per_minute=1), grant(requests_per_minute=1, expires_s=2000.0)
    keys.replace(3, (rotated, old))
    for secret in ("secret", "newer"):  # one name, one limit, however many secrets are good
        found = keys.authenticate(f"Bearer {secret}")
        assert found is not None
        retry_after_s(keys, found)


@pytest.mark.proves("an expired key is a 401")
def test_a_key_expires_by_itself() -> None:
    clock = StillClock()
    keys = KeyRing(clock, may_be_open=True)
    keys.replace(1, (grant(expires_s=1000.5),))
    assert keys.authenticate("Bearer secret") is not None
    clock.now_s = 1000.5
    with pytest.raises(Refusal, match="expired"):
        keys.authenticate("Bearer secret")


@pytest.mark.proves(
    "a gateway without keys is open on loopback only",
    "before any keys were heard of all requests are a 503",
)
def test_an_open_gateway_is_one_of_loopback_that_has_heard_that_there_are_no_keys() -> None:
    for may_be_open, heard, status in [(True, False, 503), (False, False, 503), (False, True, 401)]:
        keys = KeyRing(StillClock(), may_be_open=may_be_open)
        if heard:
            keys.replace(1, ())
        with pytest.raises(Refusal) as refused:
            keys.authenticate(None)
        assert refused.value.status == status
    keys = KeyRing(StillClock(), may_be_open=True)
    keys.replace(1, ())
    assert keys.authenticate(None) is None
    ask(keys, None).close(5)


def test_a_key_is_found_by_its_secret_whatever_the_case_of_the_scheme() -> None:
    keys, key = ring(StillClock())
    assert keys.authenticate("bearer secret") is key
    with pytest.raises(Refusal) as refused:
        keys.authenticate("Bearer " + hashlib.sha256(b"secret").hexdigest())  # the stored digest opens nothing
    assert refused.value.status == 401


@pytest.mark.parametrize("authorization", ["Basic secret", "Token secret", "secret", "secret secret"])
@pytest.mark.proves("only the scheme Bearer opens")
def test_a_good_secret_under_another_scheme_opens_nothing(authorization: str) -> None:
    keys, _ = ring(StillClock())
    with pytest.raises(Refusal) as refused:
        keys.authenticate(authorization)
    assert refused.value.status == 401


@pytest.mark.proves("a key that is taken away while its body comes harms nothing")
def test_a_key_that_is_taken_away_while_the_body_comes_lets_this_request_through_uncounted() -> None:
    keys, key = ring(StillClock(), requests_per_minute=1)
    keys.replace(2, ())
    ask(keys, key).close(3)
    assert ask(keys, key).headers() == {}


def test_what_is_left_is_told_in_the_headers_that_openai_sends() -> None:
    clock = StillClock()
    keys, key = ring(clock, requests_per_minute=60, tokens_per_minute=6000)
    told = ask(keys, key, max_tokens=90).headers()
    assert told == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5900",
        "x-ratelimit-reset-tokens": "1s",
    }
    for _ in range(59):
        ask(keys, key)
    refused = refusal(keys, key)
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert (refused.body()["error"], refused.kind) == (refused.body()["error"], "requests")
    assert [duration(ns) for ns in (0, 1, 120 * 10**6, 15 * 10**8, 360 * 10**9)] == [
        "0ms",
        "1ms",
        "120ms",
        "1.5s",
        "6m0s",
    ]


@pytest.mark.proves("a share of a limit lets one through at least", "gateways share a limit")
def test_gateways_that_share_a_limit_let_no_more_through_together() -> None:
    clock = StillClock()
    rings = [ring(clock, requests_per_minute=10, concurrent_streams=4) for _ in range(2)]
    let_in = []
    for place, (keys, key) in enumerate(rings):
        keys.share(LimitShare(place, 2))
        for _ in range(5):
            let_in.append(ask(keys, key))
            let_in[-1].close(None)
        assert retry_after_s(keys, key) == 12  # a fifth of a minute: half of ten a minute
    for keys, key in rings:
        keys.share(LimitShare(0, 1))
        clock.now_s += 60
        running = [ask(keys, key) for _ in range(4)]
        assert "concurrent_streams=4" in refusal(keys, key).message
        keys.share(LimitShare(0, 2))
        running.pop().close(None)
        assert "concurrent_streams=4" in refusal(keys, key).message
    tiny, key = ring(clock, requests_per_minute=1)
    tiny.share(LimitShare(0, 8))
    ask(tiny, key)  # a share of an eighth still lets one through, in eight minutes
    assert retry_after_s(tiny, key) == 480


@pytest.mark.parametrize(("streams", "gateways"), [(1, 1), (1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (8, 3), (7, 2)])
@pytest.mark.proves("gateways share the limit on concurrent requests")
def test_the_parts_of_a_limit_on_concurrent_requests_make_up_the_whole(streams: int, gateways: int) -> None:
    """One request at a time means one, behind three gateways too; and what a user may have, he can have."""
    let_in = 0
    for place in range(gateways):
        keys, key = ring(StillClock(), concurrent_streams=streams)
        keys.share(LimitShare(place, gateways))
        part = 0
        with pytest.raises(Refusal) as refused:
            for part in range(streams + 1):  # noqa: B007 - how far it came
                ask(keys, key)
        let_in += part
        message = f"The API key 'k' has reached its limit concurrent_streams={streams}."
        if gateways > 1:
            message += f" {gateways} gateways share it, and this one"
            message += f"'s part is {part}." if part else " has no part of it: another one may let the request in."
        assert (refused.value.status, refused.value.message) == (429, message)
        assert refused.value.headers["retry-after"] == "1"
    assert let_in == streams


def test_another_place_among_as_many_gateways_leaves_buckets_as_they_are() -> None:
    keys, key = ring(StillClock(), requests_per_minute=4, concurrent_streams=1)
    keys.share(LimitShare(0, 2))
    ask(keys, key).close(None)
    keys.share(LimitShare(1, 2))
    assert "no part of it" in refusal(keys, key).message
    keys.share(LimitShare(0, 2))
    ask(keys, key).close(None)
    assert "requests_per_minute=4" in refusal(keys, key).message, "two of the four were its own"


@hypothesis_settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(
    limit=st.integers(1, 200),
    sharers=st.integers(1, 3),
    steps=st.lists(st.tuples(st.integers(0, 90 * 10**9), st.integers(0, 40)), max_size=30),
)
def test_a_bucket_is_exact_to_the_nanosecond(limit: int, sharers: int, steps: list[tuple[int, int]]) -> None:
    """Against fractions: what is let through, and that waiting as told is enough, and a nanosecond less is not."""
    now_ns = 5
    bucket = TokenBucket(limit, sharers, now_ns)
    rate, full = Fraction(limit, 60 * 10**9 * sharers), max(Fraction(limit, sharers), Fraction(1))
    level = full
    taken: list[int] = []  # when
    for pause_ns, wanted in steps:
        now_ns += pause_ns
        level = min(full, level + pause_ns * rate)
        for _ in range(wanted):
            wait_ns = bucket.wait_ns(1, now_ns)
            assert (wait_ns == 0) == (level >= 1)
            if wait_ns:
                assert level + wait_ns * rate >= 1 > level + (wait_ns - 1) * rate
                break
            bucket.take(1, now_ns)
            level -= 1
            taken.append(now_ns)
        assert bucket.left(now_ns) == level.numerator // level.denominator
    for place, begin_ns in enumerate(taken):
        for end_place in range(place, len(taken)):
            seconds_ns = taken[end_place] - begin_ns
            assert end_place - place + 1 <= full + seconds_ns * rate
