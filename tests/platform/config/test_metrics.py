"""The section `metrics`: open only to this machine, unless a token guards it."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_text

FILE = Path("/some/where/pool.yaml")


def test_it_is_loopback_and_a_free_port_where_nothing_is_said(valid_text: str) -> None:
    section = load_text(valid_text, path=FILE).config.metrics
    assert (section.enabled, section.host, section.port, section.token_file) == (True, "127.0.0.1", 0, None)


def test_an_open_address_needs_a_token_file(valid_text: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        load_text(valid_text + "metrics:\n  host: 0.0.0.0\n", path=FILE)
    (problem,) = refused.value.problems
    assert "a token_file is required, because metrics.host is open to other machines" in str(problem)
    config = load_text(valid_text + "metrics:\n  host: 0.0.0.0\n  token_file: t\n", path=FILE).config
    assert config.metrics.token_file == Path("/some/where/t")


@pytest.mark.parametrize("host", ["0.0.0.0", '"::"', "10.0.0.1"])
def test_no_address_but_loopback_is_taken_for_private(valid_text: str, host: str) -> None:
    with pytest.raises(ConfigErrors, match="token_file is required"):
        load_text(valid_text + f"metrics:\n  host: {host}\n", path=FILE)


@pytest.mark.parametrize("host", ["127.0.0.2", '"::1"'])
def test_loopback_has_several_addresses(valid_text: str, host: str) -> None:
    assert load_text(valid_text + f"metrics:\n  host: {host}\n", path=FILE).config.metrics.host


def test_a_name_is_no_address(valid_text: str) -> None:
    with pytest.raises(ConfigErrors, match="expected an IP address"):
        load_text(valid_text + "metrics:\n  host: localhost\n", path=FILE)
