"""Settings travel as JSON and refuse what cannot be meant."""

import json

import pytest

from ebbtide_serve.gateway.settings import GatewaySettings, settings_from_json, settings_to_json


@pytest.mark.proves("the internal token is in no JSON")
def test_settings_survive_json_and_the_internal_token_is_not_in_it() -> None:
    settings = GatewaySettings(endpoints=("m",), internal_token="hush", host="0.0.0.0", tls_cert="c", tls_key="k")
    text = json.dumps(settings_to_json(settings))
    assert "hush" not in text + repr(settings)
    assert settings_from_json(json.loads(text), "hush") == settings
    assert settings.scheme == "https" and not settings.is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert GatewaySettings(endpoints=(), internal_token="t", host=host).is_loopback


@pytest.mark.proves("half a certificate is refused", "there is no gateway without an internal token")
@pytest.mark.parametrize(
    "wrong",
    [
        {"hold_max_requests": 0},
        {"hold_max_bytes": 0},
        {"max_inflight_per_seat": 0},
        {"max_body_bytes": 0},
        {"internal_token": ""},
        {"tls_cert": "cert.pem"},
        {"tls_key": "key.pem"},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        GatewaySettings(**({"endpoints": (), "internal_token": "t"} | wrong))  # type: ignore[arg-type]
