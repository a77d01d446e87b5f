"""Waiting until the pool runs what a file says, at the end of `ebbtide up`."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide_autoscaler.core.observe.freeze_cause import FreezeCause
from ebbtide_autoscaler.lifecycle.progress import NotInTime, until_done
from ebbtide_autoscaler.lifecycle.rollout import Rollout, rollout

ROLL_S = 3600.0  # a large model that is read from a slow disk, a few replicas in a row
WAITS_S = 15.0  # what only waits for slots for so long is left to the pool: a job steps aside within seconds

Say = Callable[[str], None]


def settle(config: PoolFile, before: Mapping[str, int], *, had_another_file: bool, say: Say) -> dict[str, list[str]]:
    """Wait until changed endpoints run what the file says, removed ones are gone, and those that always have a replica
    have one; what is left when nothing more is on its way.

    Args:
        before: see `lifecycle.rollout.failures_before`.
        had_another_file: there is one to go back to.

    Raises:
        CommandFailed: an endpoint does not start, or an hour was not enough.
    """
    if config.pool.mode is PoolMode.OBSERVE:
        return {}
    link, watched, since_s = ArbiterLink(), set[str](), time.monotonic()

    def look() -> tuple[Rollout, str] | None:
        nonlocal since_s
        rolling, status = link.call("rolling"), link.call("status")
        if rolling is None or status is None:
            return None
        watched.update(name for name, seats in rolling.items() if seats)
        found = rollout(config, rolling, status, before=before, watched=watched)
        if not found.waiting:
            since_s = time.monotonic()
        return found, _standing_still(status)

    def done(seen: tuple[Rollout, str]) -> bool:
        found, still = seen
        given_up = found.waiting and time.monotonic() - since_s > WAITS_S
        return bool(found.failed or still or not found.left or given_up)

    def words(seen: tuple[Rollout, str]) -> str:
        found, still = seen
        return f"still to come: {'; '.join(found.left)}{still}" if found.left else ""

    try:
        found, still = until_done(look, done=done, words=words, say=say, limit_s=ROLL_S)
    except NotInTime as error:
        raise CommandFailed(f"the file is in force, and not carried out within {ROLL_S:g} s: {error}") from error
    if found.failed:
        raise CommandFailed("\n".join([*found.failed, _remedy(had_another_file)]))
    if found.left and not still:
        say("the file is in force, and the pool goes on by itself; see `ebbtide status`")
    return link.call("rolling") or {}


def _remedy(had_another_file: bool) -> str:
    """What a person can do about a file that is in force and does not work."""
    if had_another_file:
        return (
            "The file is in force: `ebbtide up --rollback` puts the one before back, or mend it and `ebbtide up` again."
        )
    return "The pool is up and stays up: mend the file and run `ebbtide up` with it again, or `ebbtide down`."


def _standing_still(status: Mapping[str, Any]) -> str:
    arbiter = status.get("arbiter")
    if isinstance(arbiter, dict) and arbiter.get("frozen_by") == FreezeCause.PERSON:
        return f"; nothing moves before `ebbtide unfreeze`: {arbiter['frozen']}"
    return ""
