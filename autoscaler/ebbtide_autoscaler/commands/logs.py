"""``ebbtide logs``: what the processes of a job, endpoint, seat or node, the gateway or the arbiter have printed."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ebbtide.cli.terminal.completion_names import complete_logs
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_json_line, warn
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.pool.plural import many
from ebbtide_autoscaler.cluster.node_names import Node, cluster_nodes
from ebbtide_autoscaler.commands.log_reader import PIECE_BYTES, LogFile, Selector, start_reader
from ebbtide_autoscaler.commands.log_targets import actors, runs, targets
from ebbtide_autoscaler.commands.target_pool import POOL, join_pool

READER_S = 30.0  # a new worker process: 1-2 s, more on a loaded machine
FOLLOW_S = 0.5
LOOK_AGAIN_S = 5.0  # for files of processes that started meanwhile


@dataclass(slots=True)
class Reading:
    """One file and how far it was read."""

    node: Node
    file: LogFile
    offset: int
    run: str = ""  # of a job: the id that `submit` printed
    rest: bytes = b""  # a line that is not at its end yet

    @property
    def title(self) -> str:
        """For people."""
        at = time.strftime("%H:%M:%S", time.localtime(self.file.changed_s))
        return f"{self.file.label} on {self.node.label}: {self.file.path} (last written {at})"


class Readers:
    """A reader on each node that was asked for."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self._actors: dict[str, Any] = {}

    def ask(self, node: str, method: str, *args: object) -> Any:
        """Call a reader's method; None when its node does not answer."""
        import ray  # noqa: PLC0415 - half a second, for which help and completion would wait
        from ray.exceptions import GetTimeoutError, RayError  # noqa: PLC0415

        if node not in self._actors:
            self._actors[node] = start_reader(node)
        try:
            return ray.get(getattr(self._actors[node], method).remote(*args), timeout=READER_S)
        except (GetTimeoutError, RayError):
            return None

    def find(self, by_node: dict[str, list[Selector]]) -> tuple[list[tuple[Node, LogFile]], list[str]]:
        """The files that are there, and lines about nodes that cannot be asked."""
        everywhere = by_node.get("", [])
        found: list[tuple[Node, LogFile]] = []
        missing = [
            f"node {name[:8]} is not in the cluster any more" for name in by_node if name not in ("", *self.nodes)
        ]
        for node in self.nodes.values():
            wanted = [*by_node.get(node.id, []), *everywhere]
            files = self.ask(node.id, "find", wanted) if wanted else []
            if files is None:
                missing.append(f"{node.label} does not answer")
            found += [(node, file) for file in files or []]
        return sorted(found, key=lambda pair: pair[1].changed_s), missing


@click.command()
@click.argument("name", shell_complete=complete_logs)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what is written, until Ctrl-C.")
@click.option("-n", "--lines", default=50, show_default=True, help="Last lines of each file.")
@click.option("--run", "only", default=None, help="Of a job: that run, as `submit` named it. Default: the latest.")
@click.option("--all", "everything", is_flag=True, help="Of a job: all its runs, one after the other.")
@POOL
@json_option
def logs(
    name: str, follow: bool, lines: int, only: str | None, everything: bool, pool: str | None, as_json: bool
) -> None:
    """Print the logs of NAME: a job (its driver and ranks), an endpoint, a seat, a node, `arbiter` or `gateway`.

    They lie on the nodes, in Ray's log folder, and are read there. What could not be found is said on stderr.
    """
    if only is not None and everything:
        raise click.UsageError("--run names one run, --all means all of them: give one of the two")
    record = join_pool(pool)
    readers = Readers(cluster_nodes())
    found, missing = _look(name, Path(record.shared_dir), readers, lines)
    readings = found if everything else _of_one_run(name, found, only)
    for line in missing:
        warn(line)
    if not readings and not follow:
        raise CommandFailed(f"no log of {name} was found; a driver started by hand prints where it was started")
    if as_json and not follow:
        print_json({"logs": [_facts(reading, list(_lines(readers, reading, to_the_end=True))) for reading in readings]})
        return
    run = ""
    for reading in readings:
        if not as_json and everything and reading.run != run:
            run = reading.run
            click.secho(f"===== run {run} =====", bold=True)
        if not as_json:
            click.secho(f"==> {reading.title}", bold=True)
        for text in _lines(readers, reading, to_the_end=not follow):
            _print(reading, text, as_json=as_json, labelled=False)
    if follow:
        passed_by = [one for one in found if one not in readings]
        _follow(name, Path(record.shared_dir), readers, readings, passed_by, as_json=as_json)


def _of_one_run(name: str, found: list[Reading], only: str | None) -> list[Reading]:
    """The files of the run that was asked for, else of the latest; those of what is no job as they are.

    Raises:
        BadInput: no such run is known.
    """
    known = list(dict.fromkeys(one.run for one in found if one.run))
    if only is not None and only not in known:
        others = f"; there are {', '.join(known)}" if known else ""
        raise BadInput(f"{name} has no run {only!r} whose logs are here{others}")
    if len(known) > 1 and only is None:
        warn(f"this is the latest run, {known[-1]}; --all shows {many(len(known) - 1, 'earlier one')} too")
    chosen = only if only is not None else known[-1] if known else ""
    return [one for one in found if one.run in (chosen, "")]


def _look(name: str, shared_dir: Path, readers: Readers, lines: int) -> tuple[list[Reading], list[str]]:
    status = ArbiterLink().call("status", timeout_s=5.0) or {}
    try:
        wanted = targets(name, status=status, known=actors(), nodes=list(readers.nodes.values()), shared_dir=shared_dir)
    except ValueError as error:
        raise BadInput(str(error)) from error
    files, missing = readers.find(wanted.by_node)
    there = {file.label for _, file in files}
    asked = [one for node, several in wanted.by_node.items() if node in ("", *readers.nodes) for one in several]
    unseen = sorted({one.label for one in asked} - there)
    missing = [*wanted.missing, *missing, *([f"nothing printed by {', '.join(unseen)} was found"] if unseen else [])]
    readings = []
    for (node, file), run in zip(files, runs([file for _, file in files]), strict=True):
        start = readers.ask(node.id, "tail_start", file.path, lines)
        readings.append(Reading(node, file, start if lines and start is not None else file.size, run))
    last_s = {one.run: one.file.changed_s for one in readings}  # they come in the order of their last word
    return sorted(readings, key=lambda one: (last_s[one.run], one.file.changed_s)), missing


def _lines(readers: Readers, reading: Reading, *, to_the_end: bool) -> Iterator[str]:
    """The whole lines that are new; at the end of the file also one without its newline, if asked for."""
    while piece := readers.ask(reading.node.id, "read", reading.file.path, reading.offset):
        reading.offset += len(piece)
        *whole, reading.rest = (reading.rest + piece).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
        if len(reading.rest) > PIECE_BYTES or len(piece) < PIECE_BYTES:
            break
    if reading.rest and (to_the_end or len(reading.rest) > PIECE_BYTES):
        yield reading.rest.decode("utf-8", "replace")
        reading.rest = b""


def _facts(reading: Reading, lines: list[str]) -> dict[str, Any]:
    file = reading.file
    return {"what": file.label, "node": reading.node.id, "file": file.path, "run": reading.run or None, "lines": lines}


def _print(reading: Reading, text: str, *, as_json: bool, labelled: bool) -> None:
    if as_json:
        print_json_line({"what": reading.file.label, "node": reading.node.id, "line": text})
    else:
        click.echo(f"{reading.file.label}| {text}" if labelled else text)


def _follow(
    name: str, shared_dir: Path, readers: Readers, readings: list[Reading], passed_by: list[Reading], *, as_json: bool
) -> None:
    due_s = time.monotonic() + LOOK_AGAIN_S
    with until_ctrl_c() as over:
        while not over.is_set():
            for reading in readings:
                for text in _lines(readers, reading, to_the_end=False):
                    _print(reading, text, as_json=as_json, labelled=len(readings) > 1)
            if not over.wait(FOLLOW_S) and time.monotonic() > due_s:
                known = {(reading.node.id, reading.file.path) for reading in (*readings, *passed_by)}
                found, _ = _look(name, shared_dir, readers, 0)
                fresh = [one for one in found if (one.node.id, one.file.path) not in known]
                for one in fresh:
                    one.offset = 0  # of a process that started meanwhile: from its first word on
                readings += fresh
                due_s = time.monotonic() + LOOK_AGAIN_S


@contextmanager
def until_ctrl_c() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts, as always.

    Not by catching ``KeyboardInterrupt``: it comes wherever the program is, and within Ray's own code it may get lost
    (seen once: `logs --follow` went on after a Ctrl-C on a loaded machine).
    """
    over = threading.Event()

    def asked(_signal: int, _frame: object) -> None:
        over.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield over
    finally:
        signal.signal(signal.SIGINT, before)
