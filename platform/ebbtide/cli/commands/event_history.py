"""``ebbtide events`` and ``ebbtide why``: questions to the ledger; they need neither the arbiter nor Ray."""

import json
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from ebbtide.cli.commands.seat_revisions import Replaced, SeatRevisions
from ebbtide.cli.terminal.causes import cause
from ebbtide.cli.terminal.completion_names import complete_subjects, index_file
from ebbtide.cli.terminal.durations import lasting
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.event_sentences import clock, is_long, sentence, short
from ebbtide.cli.terminal.output import json_option, print_json, print_json_line
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.reader import follow as follow_ledger
from ebbtide.ledger.reader import survey
from ebbtide.ledger.sqlite_index import IndexedRecord, LedgerIndex

POOL = click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
SHOWN = ("event", "would")  # what was done, and what a pool that only observes would have done
ANSWER_S = 5.0  # a listing takes milliseconds; a filesystem that needs this long hangs
NODE_LEAST = 4  # characters of a node's id; `status` prints eight
KNOWN_LIMIT = 100_000  # records that are looked through for the names a person may have meant


def _pool(name: str | None, shared_dir: Path | None) -> Path:
    """The ledger's directory."""
    if shared_dir is not None:
        return shared_dir / "ledger"
    try:
        record: ClusterRecord = load_cluster(name)
    except NoPool as error:
        raise BadInput(f"{error}; or name its directory with --shared-dir") from error
    return Path(record.shared_dir) / "ledger"


def _require_answer(directory: Path) -> None:
    """Fail with a message, instead of hanging, when the shared directory does; a daemon thread is left behind then."""
    answer: Future[bool] = Future()

    def look() -> None:
        try:
            answer.set_result(directory.is_dir() and bool(survey(directory)))
        except (LedgerError, OSError) as error:
            answer.set_exception(error)

    threading.Thread(target=look, daemon=True).start()
    try:
        there = answer.result(timeout=ANSWER_S)
    except FutureTimeout:
        why = f"the shared directory does not answer within {ANSWER_S:g} s ({directory}); is its filesystem hung?"
        raise CommandFailed(f"{why} What runs goes on, and `ebbtide status` says since when nothing moves") from None
    except (LedgerError, OSError) as error:
        raise CommandFailed(f"the ledger cannot be read: {error}") from error
    if not there:
        raise BadInput(f"there is no ledger in {directory}")


def _index(directory: Path) -> LedgerIndex:
    """The node-local index, brought up to date."""
    _require_answer(directory)
    try:
        index = LedgerIndex(directory, index_file(directory))
    except LedgerError:  # a home that cannot be written to: a throw-away index does as well
        index = LedgerIndex(directory, Path(tempfile.mkdtemp(prefix="ebbtide-index-")) / "index.sqlite")
    try:
        index.update()
    except LedgerError as error:
        raise CommandFailed(f"the ledger cannot be read: {error}") from error
    return index


SHARED_DIR = click.option(
    "--shared-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The pool's shared directory, when no record of the pool is at hand.",
)


@click.command()
@click.option("-n", "--limit", default=50, show_default=True, help="Newest events to show.")
@click.option("--since", "since_s", default=None, type=float, help="Only the last so many seconds.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing what happens, until Ctrl-C.")
@click.argument("subject", required=False, shell_complete=complete_subjects)
@POOL
@SHARED_DIR
@json_option
def events(
    subject: str | None,
    limit: int,
    since_s: float | None,
    follow: bool,
    pool: str | None,
    shared_dir: Path | None,
    as_json: bool,
) -> None:
    """Show what happened in the pool, or to SUBJECT: a job, endpoint, seat, slot or node."""
    directory = _pool(pool, shared_dir)
    with closing(_index(directory)) as index:
        about = _resolve(index, subject) if subject else None
        after_s = time.time() - since_s if since_s is not None else 0.0
        found = index.events(after_s, limit=limit, subject=about, types=SHOWN)
    if as_json and not follow:
        print_json({"events": [record.payload for record in found]})
        return
    for record in found:
        _print(record.payload, as_json)
    if follow:
        _follow(directory, about, found, as_json)


def _print(payload: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json_line(payload)
    else:
        click.echo(f"{clock(payload['at_s'])}  {payload['id']:>7}  {_would(payload)}{sentence(payload['body'])}")


def _would(payload: dict[str, Any]) -> str:
    return "would: " if payload.get("type") == "would" else ""


def _follow(directory: Path, subject: str | None, shown: list[IndexedRecord], as_json: bool) -> None:
    last_s = shown[-1].at_s if shown else time.time()
    try:
        for record in follow_ledger(directory, stop=lambda: False):
            payload: dict[str, Any] = dict(record.payload)
            new = payload.get("type") in SHOWN and float(payload["at_s"]) > last_s
            if new and (subject is None or subject in json.dumps(payload["body"])):
                _print(payload, as_json)
    except KeyboardInterrupt:
        return


@click.command()
@click.argument("subject", shell_complete=complete_subjects)
@click.option("-n", "--limit", default=12, show_default=True, help="Newest events to explain.")
@POOL
@SHARED_DIR
@json_option
def why(subject: str, limit: int, pool: str | None, shared_dir: Path | None, as_json: bool) -> None:
    """Explain the state of SUBJECT (a slot, job, endpoint or seat): what was decided about it, and why.

    SUBJECT may be the id of an event, too, as `ebbtide events` prints it and a client is told when a model does not
    start.
    """
    with closing(_index(_pool(pool, shared_dir))) as index:
        one = index.record(subject)
        if one is not None and one.type in SHOWN:
            name, found = _about(one), [one]
        else:
            name = _resolve(index, subject)
            found = index.events(limit=limit, subject=name, types=SHOWN)
        waits = index.events(limit=1, types=("waits",))
        chains = {record.id: index.chain(record.id)[1:] for record in found}
        revisions = SeatRevisions(index)
        told_of = (*found, *(before for chain in chains.values() for before in chain))
        replaced = {one.id: revisions.replaced(one) for one in told_of}
    waiting = waits[-1].payload.get("waits") if waits else None
    reasons = _waits(waiting if isinstance(waiting, dict) else {}, name)
    if as_json:
        print_json(
            {
                "subject": name,
                "waits": reasons,
                "events": [
                    {**r.payload, "because": [c.payload for c in chains[r.id]], "replaced": _facts(replaced[r.id])}
                    for r in found
                ],
            }
        )
        return
    click.secho(f"{subject}", bold=True)
    told: set[str] = set()
    for record in found:
        for before in reversed(chains[record.id]):
            if before.id not in told and before.id not in {r.id for r in found}:
                _tell(before, "  because ", replaced[before.id])
                told.add(before.id)
        told.add(record.id)
        _tell(record, "  ", replaced[record.id])
    for who, reason in reasons.items():
        told_now = cause(reason)
        click.secho(f"  now: {who} {told_now}" if who != name else f"  now: {told_now}", fg="yellow")
    if any(is_long(value) for record in found for value in _body(record).values()):
        click.echo(f"  more: ebbtide logs {name}, or ebbtide why {name} --json")


def _body(record: IndexedRecord) -> dict[str, Any]:
    body: Any = record.payload["body"]
    return body if isinstance(body, dict) else {}


def _about(record: IndexedRecord) -> str:
    """The job or endpoint that an event is about; empty if it is about something else."""
    body: Any = record.payload["body"]
    seat, _, _ = str(body.get("seat", "")).rpartition("/")
    return seat or str(body.get("job", ""))


def _tell(record: IndexedRecord, indent: str, replaced: Replaced | None) -> None:
    body: Any = record.payload["body"]
    past = ""
    if replaced is not None:  # else it reads as how things stand
        ago = lasting(time.time() - record.at_s)
        past = f" [history: {ago} ago, of revision {replaced.revision}; {replaced.by} is in force]"
    click.echo(f"{indent}{clock(record.at_s)}  {_would(record.payload)}{sentence(body)}{past}")


def _facts(replaced: Replaced | None) -> dict[str, Any] | None:
    if replaced is None:
        return None
    return {"revision": replaced.revision, "by": replaced.by, "at_s": replaced.at_s}


def _waits(waits: dict[str, Any], name: str) -> dict[str, str]:
    return {who: str(reason) for who, reason in waits.items() if who == name or who.startswith(f"{name}/")}


def _resolve(index: LedgerIndex, subject: str) -> str:
    """The full name of what a person named: a slot may be written with a short node name, or by its index alone, a
    node by the beginning of its id.

    Raises:
        BadInput: nothing of that name was ever in the pool, or several things were.
    """
    if index.events(limit=1, subject=subject, types=(*SHOWN, "waits")):
        return subject
    slots = sorted(_slots(index.events(limit=KNOWN_LIMIT)))
    nodes = sorted({slot.rpartition(":")[0] for slot in slots})
    meant = [slot for slot in slots if subject in (short(slot), slot.rpartition(":")[2])]
    meant += [node for node in nodes if len(subject) >= NODE_LEAST and node.startswith(subject)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise BadInput(f"{subject} may be {' or '.join(short(slot) for slot in meant)}: name one of them")
    raise BadInput(f"the ledger knows no job, endpoint, seat, slot or node {subject!r}; see `ebbtide status`")


def _slots(records: Iterable[IndexedRecord]) -> set[str]:
    found = set()
    for record in records:
        body: Any = record.payload["body"]
        if body.get("kind") == "slot_found":
            found.add(str(body["slot"]["id"]))
    return found
