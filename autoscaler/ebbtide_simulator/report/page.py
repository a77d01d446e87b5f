"""A simulation as one HTML file that needs nothing else: tables, and pictures of where the slots went."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib

from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.report.tables import CAUSES, Table
from ebbtide_simulator.run.run import COURSE_S

COLOURS = {  # one for each use, told apart by people who see red and green alike too
    Use.TRAINING: "#0072b2",
    Use.READY: "#e69f00",
    Use.STARTING: "#d55e00",
    Use.DRAINING: "#f0e442",
    Use.LOADING: "#56b4e9",
    Use.SAVING: "#cc79a7",
    Use.LOST: "#000000",
    Use.FREE: "#dddddd",
    Use.DOWN: "#999999",
}
WASTE_COLOURS = {
    "lost": "#000000",
    "saving": "#cc79a7",
    "loading": "#56b4e9",
    "starting": "#d55e00",
    "draining": "#f0e442",
    "idle-reserved": "#999999",
    "fragmentation": "#009e73",
}
MARKS = "osD^"
POINTS = 400  # of a picture that is 1,100 pixels wide, over time
SERVING = 0.98  # of the requests in time: the picture beside the whole one begins there
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25em .8em; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.row { display: flex; flex-wrap: wrap; gap: 2em; font-size: 13px }
svg { max-width: 1100px; width: 100%; height: auto }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn of a contender.

    Attributes:
        point: training in GPU-seconds, and the share of requests in time.
        frontier: the same with other settings, the most training first; empty: none were played.
        waste: shares of the pool by cause.
        course: slots by use and time, of the first seed.
    """

    point: tuple[float, float]
    frontier: Sequence[tuple[float, float]]
    waste: Mapping[str, float]
    course: Mapping[str, Sequence[int]]


def page(
    title: str,
    tables: Sequence[Sequence[Table]],
    found: Mapping[str, Picture],
    remarks: Sequence[str] = (),
    *,
    course_s: float = COURSE_S,
    recorded: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """The whole file.

    Args:
        title: of the page.
        tables: rows of them; those of a row stand side by side.
        found: by contender.
        remarks: what was left out or is odd.
        course_s: between two points of a course.
        recorded: slots by use and time as they were.
    """
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(remark)}</p>" for remark in remarks), _side_by_side(tables[0])]
    parts += ["<h2>Requests in time, and training</h2>", _frontier(found)]
    parts += [_waste(found), *(_side_by_side(row) for row in tables[1:]), "<h2>Slots over time</h2>"]
    if recorded is not None:
        parts += ["<h3>as it was</h3>", _course(recorded, course_s)]
    for name, one in found.items():
        parts += [f"<h3>{escape(name)}</h3>", _course(one.course, course_s)]
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _side_by_side(tables: Sequence[Table]) -> str:
    return '<div class="row">' + "".join(map(_table, tables)) + "</div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows]
    rows = f"<tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines)
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<section><h2>{escape(table.title)}</h2><table>{rows}</table>{note}</section>"


def _course(course: Mapping[str, Sequence[int]], every_s: float) -> str:
    """Slots by use over time, one on the other."""
    plots = _plots()
    figure, axes = plots.subplots(figsize=(11, 3), layout="constrained")
    uses = [use for use in COLOURS if use.value in course]
    hours, counts = drawn_course([course[use.value] for use in uses], every_s)
    axes.stackplot(
        hours,
        *counts,
        labels=[use.value for use in uses],
        colors=[COLOURS[u] for u in uses],
    )
    axes.set(xlabel="hours", ylabel="GPUs", xlim=(0, hours[-1] or every_s / 3600), ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _svg(figure)


def drawn_course(counts: Sequence[Sequence[int]], every_s: float) -> tuple[list[float], list[list[float]]]:
    """Hours, and the counts there; of a long run the means of stretches: no screen has more points."""
    every = -(-len(counts[0]) // POINTS)
    begins = range(0, len(counts[0]), every)
    means = [[sum(mine := count[n : n + every]) / len(mine) for n in begins] for count in counts]
    return [n * every_s / 3600 for n in begins], means


def _frontier(found: Mapping[str, Picture]) -> str:
    """Goodput against requests in time: all of it, and those who serve."""
    figure, both = _plots().subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axes, least in zip(both, (0.0, SERVING), strict=True):
        for number, (name, one) in enumerate(found.items()):
            if one.point[1] < least and not any(served >= least for _, served in one.frontier):
                continue
            look = {"color": f"C{number % 10}", "marker": MARKS[number // 10 % len(MARKS)]}
            curve = sorted([*one.frontier, one.point])
            axes.plot([x / 3600 for x, _ in curve], [100 * y for _, y in curve], lw=0.8, ms=3, **look)
            axes.plot(one.point[0] / 3600, 100 * one.point[1], ms=8, label=name, ls="", **look)
        axes.set(xlabel="training, GPU-hours", ylabel="requests in time, %")
        if least:
            axes.set_ylim(100 * least, 100 + (1 - least) * 5)
    both[0].legend(fontsize=7, frameon=False)
    return _svg(figure)


def _waste(found: Mapping[str, Picture]) -> str:
    """Causes of waste, side by side."""
    figure, axes = _plots().subplots(figsize=(11, 1.5 + 0.3 * len(found)), layout="constrained")
    begin = [0.0] * len(found)
    for cause, told in CAUSES.items():
        shares = [100 * one.waste[cause] for one in found.values()]
        axes.barh(list(found), shares, left=begin, label=told, color=WASTE_COLOURS[cause])
        begin = [so_far + share for so_far, share in zip(begin, shares, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="of the pool's GPU-seconds, %")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _svg(figure)


def _plots() -> Any:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: a page is to be searched too
    from matplotlib import pyplot  # noqa: PLC0415 - once it knows that there is no screen

    return pyplot


def _svg(figure: Any) -> str:
    text = io.StringIO()
    plots = _plots()
    with plots.rc_context(
        {"svg.hashsalt": "ebbtide"}
    ):  # else ids are drawn anew, and equal runs have pages that differ
        figure.savefig(text, format="svg", metadata={"Date": None})
    plots.close(figure)
    found = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"\d+\.\d+", _tenth, path[0]), found)


def _tenth(number: re.Match[str]) -> str:
    """Of a pixel is enough, and a third of the bytes."""
    return f"{float(number[0]):.1f}"
