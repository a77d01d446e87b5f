"""``ebbtide status``: the pool at a glance, once or live; from the ledger alone when the arbiter does not answer."""

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import click

from ebbtide.cli.terminal.output import console, json_option, print_json, print_json_line
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.ledger.errors import LedgerError
from ebbtide_autoscaler.cluster.local_cluster import runtime_dir
from ebbtide_autoscaler.commands.pool import POOL, the_pool
from ebbtide_autoscaler.commands.status_tables import render
from ebbtide_autoscaler.commands.status_watch import keep_on_screen
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.journal.heartbeat import read_beat
from ebbtide_autoscaler.journal.records import recover
from ebbtide_autoscaler.service.pool_view import view

LEDGER_S = 5.0  # for reading it; a filesystem that needs longer hangs


@click.command()
@click.option("--watch", is_flag=True, help="Keep the table on the screen, twice a second, until Ctrl-C.")
@click.option("--all", "everything", is_flag=True, help="Also the jobs that ended over ten minutes ago.")
@POOL
@json_option
def status(pool: str | None, watch: bool, everything: bool, as_json: bool) -> None:
    """Show who holds each slot, how each endpoint and job does, and what they wait for."""
    record = the_pool(pool)

    def once() -> dict[str, Any]:
        return look(record)

    if watch:
        keep_on_screen(
            once,
            print_json_line if as_json else None,
            lambda found: render(found, everything=everything),
            first={"pool": record.pool, "gateway": record.gateway_url},
        )
    elif as_json:
        print_json(once())
    else:
        console().print(render(once(), everything=everything))


def look(record: ClusterRecord) -> dict[str, Any]:
    """The status from the arbiter, or what the ledger says with the reason why the arbiter was not asked."""
    why = "the arbiter does not answer (it may be starting again); everything that runs goes on, nothing moves"
    try:
        join(record)
        found: dict[str, Any] | None = ArbiterLink().call("status", timeout_s=5.0)
    except ClusterUnreachable as error:
        lost = f"if the cluster is lost, `ebbtide up {record.config_file}` restores it"
        found, why = None, f"{error}; {lost}"
    if found is not None:
        return {**found, "gateway": record.gateway_url}
    return {"pool": record.pool, "gateway": record.gateway_url, **_from_the_ledger(record, why)}


def _from_the_ledger(record: ClusterRecord, why: str) -> dict[str, Any]:
    """The last known state; a shared directory that hangs must not hang `status`, so it is read in a thread."""
    read: Future[dict[str, Any]] = Future()

    def work() -> None:
        try:
            past = recover(Path(record.shared_dir) / "ledger")
            read.set_result(view(past.state, Observation(started_s=time.time()), {}, time.time(), left=past.left))
        except (LedgerError, OSError) as error:
            read.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        known = read.result(timeout=LEDGER_S)
    except FutureTimeout:
        known, why = {}, f"{why}; and the shared directory {record.shared_dir} does not answer within {LEDGER_S:g} s"
    except (LedgerError, OSError) as error:
        known, why = {}, f"{why}; and the ledger cannot be read: {error}"
    beat = read_beat(runtime_dir(record.pool))
    arbiter = {
        "frozen": why,
        "frozen_since_at_s": beat.at_s if beat is not None else None,  # its last sign of life
        "frozen_by": "",
        "epoch": beat.epoch if beat is not None else None,
    }
    return {"arbiter": arbiter, "notices": [], **known}
