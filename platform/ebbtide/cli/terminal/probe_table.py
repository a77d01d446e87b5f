"""A probe's report for people: one sentence, then per node a table of tiers, what is in the way, and what to do."""

import sys

from rich.text import Text

from ebbtide.cli.terminal.output import console
from ebbtide.cli.terminal.tables import Listing
from ebbtide.diagnostics.probe.probe_report import NodeReport, ProbeReport, TierLine
from ebbtide.snapshot.tiers.formatting import IN_WORDS, gigabytes, seconds


def print_report(found: ProbeReport) -> None:
    """All of it, on stdout."""
    on = console()
    wrap = not sys.stdout.isatty()
    on.print(Text(found.summary, style="bold"), soft_wrap=wrap)
    for node in found.nodes:
        on.print(Text(f"\n{_heading(node)}", style="bold"))
        if node.unread:
            on.print(Text(f"  {node.unread}", style="red"), soft_wrap=wrap)
            continue
        on.print(_tiers(node))
        on.print(Text(f"  {node.reason}"), soft_wrap=wrap)
        for fact in node.facts:
            if fact.remedy and not fact.hinders:
                on.print(Text(f"  {fact.what}\n    -> {fact.remedy}", style="dim"), soft_wrap=wrap)
        assumed = [rate for rate in node.rates if not rate.measured]
        if assumed:
            text = (
                f"  Not measured here: {', '.join(rate.lane.value for rate in assumed)}. ebbtide probe --rehearse does."
            )
            on.print(Text(text, style="dim"), soft_wrap=wrap)
    for act in found.rehearsal:
        on.print(Text(f"\nRehearsed, {act.name}: {act.words}", style="red" if act.failed else "green"), soft_wrap=wrap)


def _heading(node: NodeReport) -> str:
    name = f"{node.machine or 'node'} {node.node[:8]}".strip()
    pids = f", processes {', '.join(map(str, node.pids.values()))}" if node.pids else ""
    return f"{name}: {node.workers} {'worker' if node.workers == 1 else 'workers'}{pids}"


def _tiers(node: NodeReport) -> Listing:
    rows = []
    for line in node.tiers:
        colour = "green" if line.tier is node.choice else "" if line.holds else "dim"
        rows.append([Text(cell, style=colour) for cell in _cells(node, line)])
    columns = ("  tier", "free", "back", "durable", "memory", "disk", "how")
    return Listing("", columns, rows, below=["how"], optional=["disk", "memory", "durable"])


def _cells(node: NodeReport, line: TierLine) -> tuple[str, ...]:
    mark = "* " if line.tier is node.choice else "  "
    against = "\n".join(f"{one.what}\n-> {one.remedy}" for one in line.why_not)
    if not line.holds:
        return f"{mark}{IN_WORDS[line.tier]}", "no", "", "", "", "", against
    durable = "never" if line.durable_s is None else seconds(line.durable_s)
    memory, disk = (gigabytes(size) if size else "-" for size in (line.ram_bytes, line.disk_bytes))
    return f"{mark}{IN_WORDS[line.tier]}", seconds(line.free_s), seconds(line.resume_s), durable, memory, disk, line.way
