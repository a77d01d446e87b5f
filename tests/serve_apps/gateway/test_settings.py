"""What a gateway refuses to be told."""

import hashlib
import json

import pytest

from ebbtide_serve.gateway.settings import ApiKey, GatewaySettings, settings_from_json, settings_to_json

KEY = ApiKey("k", hashlib.sha256(b"s").hexdigest(), endpoints=("m",), tokens_per_minute=5)


def test_settings_travel_as_json_without_the_internal_token() -> None:
    settings = GatewaySettings(endpoints=("m",), internal_token="hush", keys=(KEY,), host="0.0.0.0")
    wire = json.dumps(settings_to_json(settings))
    assert "hush" not in wire and "hush" not in repr(settings)
    assert settings_from_json(json.loads(wire), "hush") == settings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example"])
def test_a_public_address_without_keys_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="no API key"):
        GatewaySettings(endpoints=("m",), internal_token="t", host=host)
    assert GatewaySettings(endpoints=("m",), internal_token="t", host=host, keys=(KEY,))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_may_be_open(host: str) -> None:
    assert GatewaySettings(endpoints=("m",), internal_token="t", host=host)


def test_limits_that_let_nothing_through_are_refused() -> None:
    with pytest.raises(ValueError, match="hold_max_requests"):
        GatewaySettings(endpoints=("m",), internal_token="t", hold_max_requests=0)
    with pytest.raises(ValueError, match="internal_token"):
        GatewaySettings(endpoints=("m",), internal_token="")
    with pytest.raises(ValueError, match="64 hex"):
        ApiKey("k", "abc")
