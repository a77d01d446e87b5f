"""``ebbtide sessions``: what sessions there are, by their own files and by the pool's books."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ebbtide.cli.terminal.causes import cause
from ebbtide.cli.terminal.errors import BadInput
from ebbtide.cli.terminal.output import json_option, print_json, print_table, warn
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster
from ebbtide_train.arbiter_client.state_lines import describe, job_view
from ebbtide_train.interactive.session_folder import SessionFolder

STATUS_S = 5.0


@click.command("sessions")
@click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
@json_option
def sessions_command(pool: str | None, as_json: bool) -> None:
    """Show the pool's interactive sessions: where they stand, whose they are, where they print to."""
    try:
        record = load_cluster(pool)
    except NoPool as error:
        raise BadInput(str(error)) from error
    rows = list(sessions(Path(record.shared_dir), _status(record)))
    if as_json:
        print_json({"sessions": rows})
        return
    columns = ("session", "state", "owner", "for", "command", "remark", "log")
    print_table(columns, [_cells(row) for row in rows], below=["command", "remark", "log"], optional=["for", "owner"])


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    for_s = f"{max(0.0, time.time() - row['since_at_s']):.0f} s"
    remark = row["remark"] or cause(row["outcome"])
    return row["session"], row["state"], row["owner"], for_s, row["command"], remark, row["log"]


def sessions(shared_dir: Path, status: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """One row for each session that has ever run here.

    Args:
        status: the arbiter's; None: the arbiter does not answer, and the rows show what the supervisors wrote last.
    """
    now_s = time.time()
    for name in sorted(_names(shared_dir / "train")):
        place = SessionFolder(shared_dir / "train" / name)
        try:
            told = place.read("standing")
        except (OSError, ValueError) as error:
            warn(str(error))
            continue
        if told is None:
            continue
        view = job_view(status, name)
        since_s = float(told.get("since_s", now_s))
        yield {
            "session": name,
            "state": told.get("state", "") if view is None else view["state"],
            "says": "" if view is None else describe(view),
            "owner": told.get("owner", ""),
            "node": told.get("node", ""),
            "since_at_s": since_s,
            "command": " ".join(told.get("command", ())),
            "images": told.get("images", 0),
            "image_bytes": told.get("image_bytes", 0),
            "cannot_park": told.get("cannot_park", ""),
            "cannot_image": told.get("cannot_image", ""),
            "remark": _remark(told),
            "outcome": told.get("outcome", ""),
            "log": str(place.output),
            "touch": str(place.touch),
        }


def _remark(told: Mapping[str, Any]) -> str:
    """What its owner should know: of a refusal, of what would be refused, or what its supervisor said last."""
    if refused := told.get("park_refused"):
        return str(refused)
    if why := told.get("cannot_park"):
        return f"cannot be parked now: {why}"
    if why := told.get("cannot_image"):
        return f"parks in memory only, no image can be made of it now: {why}"
    return str(told.get("remark", ""))


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return []


def _status(record: ClusterRecord) -> Mapping[str, Any] | None:
    try:
        join(record)
    except ClusterUnreachable as error:
        warn(f"{error}; shown is what sessions wrote last")
        return None
    found: Mapping[str, Any] | None = ArbiterLink().call("status", timeout_s=STATUS_S)
    if found is None:
        warn("the arbiter does not answer; shown is what sessions wrote last")
    return found
