"""``ebbtide doctor``: what this node can do for the storage, what is in the way, and what to do about it."""

import os
import platform
import re
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import console, is_terminal, json_option, print_json, warn
from ebbtide.client.cluster_record import NoPool, load_cluster
from ebbtide.diagnostics.doctor.bandwidth_check import BandwidthReading, measure_bandwidth
from ebbtide.diagnostics.doctor.doctor_report import POOL_BYTES, DoctorOptions, Report, examine
from ebbtide.diagnostics.doctor.findings import Finding, Verdict, by_verdict
from ebbtide.diagnostics.doctor.rdma_check import read_rdma
from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.storage.device import cufile_json
from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.system.interrupts import terminated_is_interrupted

_TITLES = {
    Verdict.MISSING: ("Missing or broken", "red"),
    Verdict.LIMITED: ("Limited", "yellow"),
    Verdict.UNKNOWN: ("Not known", "magenta"),
    Verdict.OK: ("In order", "green"),
}
_LOOK_S = 5.0  # a directory answers in milliseconds, or its filesystem hangs
_LEAST_PROBE = 1 << 20


class ByteSize(click.ParamType[int]):
    """A number of bytes: ``512MiB``, ``1.5GB``, ``4096``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes as an int; exit code 2 for anything else."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B?)", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size in bytes: write 512MiB, 1GB or 4096", param, ctx)
        power = " KMGT".index((found[2] or " ").upper())
        return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--shared-dir", type=click.Path(path_type=Path), help="The same as DIRECTORY.")
@click.option("--no-probe", is_flag=True, help="Do not measure the speed: no large file is written.")
@click.option("--probe-bytes", type=ByteSize(), default="1GiB", show_default=True, help="Largest file to measure with.")
@click.option(
    "--expect-gbps", type=click.FloatRange(0, min_open=True), help="GB/s (10^9 bytes) that reading must reach."
)
@click.option(
    "--pool-bytes", type=ByteSize(), default=POOL_BYTES, help=f"Memory for buffers.  [default: {POOL_BYTES >> 20}MiB]"
)
@click.option(
    "--write-cufile-json",
    "settings",
    type=click.Path(path_type=Path),
    help="Only write this node's RDMA addresses into cuFile's settings at this path, and keep the rest of the file.",
)
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    directory: Path | None,
    shared_dir: Path | None,
    no_probe: bool,
    probe_bytes: int,
    expect_gbps: float | None,
    pool_bytes: int,
    settings: Path | None,
    as_json: bool,
) -> None:
    """Say what this node can do for loading and storing, what is in the way, and what to do about it.

    DIRECTORY is the pool's shared directory; by default that of the pool brought up last on this machine. Files made
    for probing are removed. Exit code 1: something that is needed is broken, and this node cannot serve.
    """
    machine = Machine()
    if settings is not None:
        _write_settings(machine, settings, as_json)
        return
    if directory is not None and shared_dir is not None and directory != shared_dir:
        raise BadInput(f"name one directory, not both {directory} and {shared_dir}")
    if probe_bytes < _LEAST_PROBE:
        raise BadInput(
            f"--probe-bytes {probe_bytes}: a file of less than 1 MiB tells nothing; --no-probe leaves it out"
        )
    wishes = DoctorOptions(
        directory=_directory(directory or shared_dir),
        probe_bytes=0 if no_probe else probe_bytes,
        expect_gbps=expect_gbps,
        pool_bytes=pool_bytes,
    )
    report = examine(machine, wishes, measure=_measure)
    if as_json:
        print_json({"node": platform.node(), **report.as_json()})
    else:
        _print(report)
    if not report.can_serve:
        ctx.exit(CommandFailed.exit_code)


def _directory(named: Path | None) -> Path | None:
    """The directory to look at, absolute; None if nobody names one.

    Raises:
        BadInput: the one that the user named is not there, or no directory.
    """
    if named is None:
        try:
            return Path(load_cluster(None).shared_dir).absolute()
        except NoPool:
            return None
    try:
        there, is_directory = within(_LOOK_S, lambda: (named.exists(), named.is_dir()))
    except NoAnswer:
        return named.absolute()  # it hangs: that is a finding
    except OSError as error:
        raise BadInput(f"{named}: {error.strerror}") from error
    if not is_directory:
        raise BadInput(f"{named} is no directory" if there else f"there is no directory {named}")
    return named.absolute()


def _measure(directory: Path, size_bytes: int) -> BandwidthReading:
    try:
        transport = PosixTransport(process_pool())
    except MemoryError as error:
        return BandwidthReading(error=str(error))
    with terminated_is_interrupted(), _bar() as bar:
        tasks = {action: bar.add_task(action, total=size_bytes) for action in ("write", "read")}

        def progress(action: str, done: int, total: int) -> None:
            bar.update(tasks[action], completed=done, total=total)

        return measure_bandwidth(transport, directory, size_bytes, progress=progress)


def _bar() -> Progress:
    columns = (TextColumn("{task.description:>5}"), BarColumn(), DownloadColumn())
    return Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty())


def _write_settings(machine: Machine, path: Path, as_json: bool) -> None:
    rdma = read_rdma(machine)
    if not rdma.addresses:
        cards = "; ".join(map(str, rdma.ports)) or "there is no RDMA network card"
        raise CommandFailed(f"nothing was written: no RDMA port with a link has an IP address ({cards})")
    try:
        base = Path(rdma.settings) if Path(rdma.settings).absolute() != path.absolute() else None
        cufile_json.write_addresses(path, rdma.addresses, devices=rdma.devices, base=base)
    except Refused as error:
        raise BadInput(f"nothing was written: {error}") from error
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}") from error
    if as_json:
        print_json({"path": str(path), "addresses": list(rdma.addresses)})
        return
    click.echo(f"{path}: {', '.join(rdma.addresses)}")
    if os.environ.get(cufile_json.PATH_VARIABLE) != str(path) and str(path) != cufile_json.DEFAULT_PATH:
        warn(f"cuFile reads it where {cufile_json.PATH_VARIABLE}={path.absolute()} is set")


def _print(report: Report) -> None:
    on = console()
    on.print(Text(f"{platform.node()}: {report.directory or 'no directory'}", style="bold"))
    for verdict, findings in by_verdict(report.findings).items():
        title, colour = _TITLES[verdict]
        on.print(Text(f"\n{title}", style=f"bold {colour}"))
        if not is_terminal():
            for finding in findings:
                on.print(Text(f"  {finding.id}  {' '.join(_told(finding).plain.split())}"))
            continue
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            table.add_row(Text(f"  {finding.id}"), _told(finding))
        on.print(table)
    on.print(Text(f"\n{report.path.sentence}", style="bold"), soft_wrap=not sys.stdout.isatty())


def _told(finding: Finding) -> Text:
    text = Text(finding.what)
    if finding.why:
        text.append(f"\n{finding.why}", style="dim")
    if finding.remedy:
        text.append(f"\n-> {finding.remedy}")
    return text
