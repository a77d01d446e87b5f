"""A simulation as one HTML file that needs nothing else: a table, and pictures of where the slots went."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ebbtide_autoscaler.simulate.meter import Use
from ebbtide_autoscaler.simulate.run import COURSE_S

COLOURS = {  # one for each use, told apart by people who see red and green alike too
    Use.TRAINING: "#0072b2",
    Use.READY: "#e69f00",
    Use.STARTING: "#d55e00",
    Use.DRAINING: "#f0e442",
    Use.LOADING: "#56b4e9",
    Use.SAVING: "#cc79a7",
    Use.LOST: "#000000",
    Use.FREE: "#dddddd",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25em .8em; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto }
"""


class NoPictures(RuntimeError):
    """The library that draws is not installed."""


def page(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], found: Mapping[str, Any]) -> str:
    """The whole file.

    Args:
        columns: of the table.
        rows: of the table.
        found: by contender: ``course`` (slots by use and time, of the first seed) and ``point`` (goodput, attainment).

    Raises:
        NoPictures: matplotlib is not installed.
    """
    parts = [f"<h1>{escape(title)}</h1>", _table(columns, rows), "<h2>Requests in time, and training</h2>"]
    parts.append(_frontier({name: one["point"] for name, one in found.items()}))
    for name, one in found.items():
        parts += [f"<h2>{escape(name)}</h2>", _course(one["course"])]
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in columns)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _course(course: Mapping[str, Sequence[int]]) -> str:
    """Slots by use over time, one on the other."""
    plots = _plots()
    figure, axes = plots.subplots(figsize=(11, 3), layout="constrained")
    uses = [use for use in COLOURS if use.value in course]
    hours = [n * COURSE_S / 3600 for n in range(len(course[uses[0].value]))]
    axes.stackplot(
        hours,
        *(course[use.value] for use in uses),
        labels=[use.value for use in uses],
        colors=[COLOURS[u] for u in uses],
    )
    axes.set(xlabel="hours", ylabel="GPUs", xlim=(0, hours[-1]), ylim=(0, None))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _svg(figure)


def _frontier(points: Mapping[str, tuple[float, float]]) -> str:
    """Each contender's goodput against its requests in time."""
    figure, axes = _plots().subplots(figsize=(8, 4), layout="constrained")
    for name, (goodput, attainment) in points.items():
        axes.plot(goodput / 3600, attainment * 100, "o")
        axes.annotate(name, (goodput / 3600, attainment * 100), textcoords="offset points", xytext=(6, 3))
    axes.set(xlabel="training, GPU-hours", ylabel="requests in time, %")
    axes.margins(x=0.15)
    return _svg(figure)


def _plots() -> Any:
    try:
        import matplotlib  # noqa: PLC0415 - optional: it comes with the extra [report]
    except ImportError as error:
        raise NoPictures("pictures need matplotlib: install ebbtide[report]") from error
    matplotlib.use("svg")
    import matplotlib.pyplot  # noqa: PLC0415 - as above; and only once it knows that there is no screen

    return matplotlib.pyplot


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    _plots().close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
