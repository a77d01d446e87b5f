"""Limits by a clock that stands still until told."""

import hashlib
from dataclasses import dataclass

import pytest

from ebbtide_serve.gateway.errors import Refusal
from ebbtide_serve.gateway.keys import Admission, KeyRing
from ebbtide_serve.gateway.settings import ApiKey


@dataclass
class StillClock:
    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return self.now_s


def ring(clock: StillClock, **limits: int | None) -> tuple[KeyRing, ApiKey]:
    key = ApiKey("k", hashlib.sha256(b"secret").hexdigest(), **limits)  # type: ignore[arg-type]
    return KeyRing((key,), clock), key


def ask(keys: KeyRing, key: ApiKey | None, *, max_tokens: int = 0) -> Admission:
    return keys.admit(key, body_bytes=40, max_tokens=max_tokens)


def retry_after_s(keys: KeyRing, key: ApiKey) -> int:
    with pytest.raises(Refusal) as refused:
        ask(keys, key)
    assert refused.value.status == 429
    return int(refused.value.headers["retry-after"])


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
    third_s = 6.6
    clock.now_s += third_s
    ask(keys, key).close(None)  # unknown: the estimate stands
    assert retry_after_s(keys, key) == 6


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


def test_what_a_key_has_used_survives_a_new_list_of_keys() -> None:
    keys, key = ring(StillClock(), requests_per_minute=1)
    ask(keys, key)
    keys.replace((key,))
    retry_after_s(keys, key)


def test_without_keys_everybody_is_let_in() -> None:
    keys = KeyRing((), StillClock())
    assert keys.authenticate(None) is None
    ask(keys, None).close(5)


def test_a_key_is_found_by_its_secret_whatever_the_case_of_the_scheme() -> None:
    keys, key = ring(StillClock())
    assert keys.authenticate("bearer secret") is key
    with pytest.raises(Refusal) as refused:
        keys.authenticate("Bearer " + hashlib.sha256(b"secret").hexdigest())  # the stored digest opens nothing
    assert refused.value.status == 401
