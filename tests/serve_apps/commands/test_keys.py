"""`ebbtide keys` against a faked arbiter: what it asks for, what it prints, and what it never prints."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.client.messages import KeyGrant
from ebbtide_serve.commands import keys as keys_command

ROW = {
    "name": "team",
    "from": "command",
    "state": "good",
    "scopes": ["models", "generate"],
    "endpoints": "all",
    "requests_per_minute": 7,
    "tokens_per_minute": None,
    "concurrent_streams": None,
    "expires_at_s": None,
}


class Arbiter:
    """Notes calls; answers with ``answer``, or raises it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Any = dict(ROW)

    def call(self, method: str, *args: object, timeout_s: float) -> Any:
        self.calls.append((method, *args))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def arbiter(monkeypatch: pytest.MonkeyPatch) -> Arbiter:
    arbiter = Arbiter()
    monkeypatch.setattr(keys_command, "load_cluster", lambda pool: pool)
    monkeypatch.setattr(keys_command, "join", lambda record: None)
    monkeypatch.setattr(keys_command, "ArbiterLink", lambda: arbiter)
    return arbiter


Run = Callable[..., Result]


@pytest.fixture
def run(arbiter: Arbiter) -> Run:
    return lambda *words: CliRunner().invoke(keys_command.keys, words)


def test_create_prints_the_secret_once_alone_on_stdout_and_sends_only_its_digest(run: Run, arbiter: Arbiter) -> None:
    result = run("create", "team", "--endpoint", "chat", "--rpm", "5", "--scope", "admin", "--expires", "30d")
    assert result.exit_code == 0, result.output
    secret = result.stdout.strip()
    assert len(secret) >= 43 and "\n" not in secret and "not shown again" in result.stderr
    ((method, grant),) = arbiter.calls
    assert method == "create_key" and isinstance(grant, KeyGrant)
    assert grant.sha256 == sha256(secret.encode()).hexdigest() and secret not in repr(grant)
    assert (grant.name, grant.endpoints, grant.requests_per_minute) == ("team", ("chat",), 5)
    assert grant.scopes == ("models", "admin") and grant.expires_s is not None
    other = run("create", "team").stdout.strip()
    assert other != secret and arbiter.calls[1][1].scopes == ("models", "generate")


def test_rotate_gives_an_hour_of_grace_unless_told(run: Run, arbiter: Arbiter) -> None:
    answer = json.loads(run("rotate", "team", "--json").stdout)
    assert arbiter.calls == [("rotate_key", "team", sha256(answer["secret"].encode()).hexdigest(), 3600.0)]
    run("rotate", "team", "--grace", "0s")
    assert arbiter.calls[1][3] == 0.0


def test_a_refusal_is_the_users_and_a_silent_arbiter_is_not(run: Run, arbiter: Arbiter) -> None:
    arbiter.answer = ValueError("the key 'ops' stands in the pool's file")
    refused = run("revoke", "ops")
    assert refused.exit_code == 2 and "stands in the pool's file" in refused.stderr
    arbiter.answer = None
    silent = run("list")
    assert silent.exit_code == 1 and "does not answer" in silent.stderr
    assert run("create", "team", "--rpm", "0").exit_code == 2
    assert run("rotate", "team", "--grace", "soon").exit_code == 2


def test_list_shows_every_key_in_a_table_and_as_json(run: Run, arbiter: Arbiter) -> None:
    arbiter.answer = [ROW]
    assert "team" in run("list").stdout and "models,generate" in run("list").stdout
    assert json.loads(run("list", "--json").stdout)["keys"] == [ROW | {"expires_at": None}]


def test_a_key_that_is_revoked_twice_was_so_already(run: Run, arbiter: Arbiter) -> None:
    for changed, line in [(True, "key team is revoked\n"), (False, "key team is revoked already\n")]:
        arbiter.answer = ROW | {"state": "revoked", "changed": changed}
        assert (run("revoke", "team").stdout, run("revoke", "team").exit_code) == (line, 0)
        arbiter.answer = ROW | {"state": "revoked", "changed": changed}
        found = json.loads(run("revoke", "team", "--json").stdout)
        assert found["already"] is not changed and "changed" not in found
