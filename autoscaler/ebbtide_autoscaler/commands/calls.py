"""How a command asks the arbiter for something, says what came of it, and looks how it comes along."""

import getpass
import os
from typing import Any

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import print_json
from ebbtide.client.arbiter_link import ArbiterLink

ASK_S = 15.0  # the arbiter gives up on a hung ledger after 5 s and says so
NO_WAIT = click.option("--no-wait", is_flag=True, help="Return as soon as the pool has taken it in.")
LIMIT = click.option("--timeout", "limit_s", default=3600.0, show_default=True, help="Seconds to wait at most.")


def user() -> str:
    """Who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"user {os.getuid()}"


def ask(method: str, *args: object) -> Any:
    """What the arbiter answers.

    Raises:
        BadInput: it refused.
        CommandFailed: it does not answer.
    """
    link = ArbiterLink()
    if link.call("hello", timeout_s=ASK_S) is None:
        raise CommandFailed("the arbiter does not answer: nothing was changed; see `ebbtide status`")
    try:
        return link.call(method, *args, timeout_s=ASK_S)
    except ValueError as error:
        raise BadInput(str(error)) from error


def was_so(answer: Any) -> bool:
    """Whether what was asked for was so already: the arbiter says that nothing was ``changed``."""
    return isinstance(answer, dict) and answer.get("changed") is False


def tell(as_json: bool, facts: dict[str, Any], line: str) -> None:
    """The result, for scripts or for a person."""
    if as_json:
        print_json(facts)
    else:
        click.echo(line)


def pool_status() -> dict[str, Any] | None:
    """The pool's status; None: nobody answers."""
    found: dict[str, Any] | None = ArbiterLink().call("status", timeout_s=5.0)
    return found


def look_at(job: str) -> dict[str, Any] | None:
    """How a job stands, with the slots that it ``occupies``, and how the arbiter does.

    None: nobody says, also while an arbiter that has just begun has not looked around yet.
    """
    found = pool_status()
    return None if found is None or "jobs" not in found else _job(found, job)


def _job(found: dict[str, Any], name: str) -> dict[str, Any]:
    known: dict[str, Any] = next((one for one in found["jobs"] if one["job"] == name), {})
    occupies = [slot["slot"] for slot in found["slots"] if slot["occupant"] == name]
    blank = {"job": name, "state": "ended", "step": 0, "durable_step": 0, "outcome": "not known any more", "held": None}
    return {**blank, **known, "occupies": occupies, "arbiter": found["arbiter"]}


def saved(job: dict[str, Any]) -> str:
    """How much of a job is on disk, with what that means where it is not all."""
    durable, ended = job["durable_step"], job["state"] == "ended"
    if durable >= job["step"]:
        return f"saved up to step {durable}"
    then = "submitted again it begins at step" if ended else "a crash now would take it back to step"
    return (
        f"{f'saved up to step {durable}' if durable else 'not saved' if ended else 'not saved yet'}: {then} {durable}"
    )
