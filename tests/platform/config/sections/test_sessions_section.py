"""The section `sessions`: nothing is idle unless the pool says so; what contradicts itself is refused."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.sections.sessions_section import SessionsSection

FILE = Path("/some/where/pool.yaml")


def test_where_nothing_is_said_no_session_is_ever_idle(valid_text: str) -> None:
    section = load_text(valid_text, path=FILE).config.sessions
    assert (section.idle_after_s, section.warn_before_s, section.webhook, section.smtp) == (None, 300, None, None)


def test_all_of_it(valid_text: str) -> None:
    text = """
sessions:
  idle_after_s: 3600
  warn_before_s: 600
  webhook: https://hooks.example.org/x
  smtp: {host: mail.example.org, sender: pool@example.org, user: pool, password_file: mail.password}
"""
    section = load_text(valid_text + text, path=FILE).config.sessions
    assert section.smtp is not None and section.smtp.password_file == Path("/some/where/mail.password")
    assert section.smtp.starttls and section.smtp.port == 587
    assert SessionsSection.model_validate_json(section.model_dump_json()) == section, "as the arbiter hands it on"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("idle_after_s: 100", "warn_before_s is 300, which must be less than idle_after_s, which is 100"),
        ("webhook: ftp://x", "webhook"),
        ("smtp: {host: h, sender: nobody}", "sender"),
        ("idle_after_s: 0", "idle_after_s"),
        ("idle: 5", "idle"),
    ],
)
def test_what_cannot_be_meant_is_refused(valid_text: str, text: str, said: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        load_text(f"{valid_text}\nsessions:\n  {text}\n", path=FILE)
    assert said in str(refused.value.problems[0])
