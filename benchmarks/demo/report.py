"""The demo's report: one HTML file that needs nothing else, with pictures as inline SVG."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.demo.account import Account, by_slot
from benchmarks.demo.client import Outcome

matplotlib.use("svg")
from matplotlib import pyplot

COLOURS = {"serving": "#2a7de1", "training": "#2e9e5b", "switching": "#f0a830", "idle": "#e5e7eb"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; color: #1f2937 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } svg { width: 100%; height: auto }
table { border-collapse: collapse } td { padding: .2rem 1rem .2rem 0; vertical-align: top }
td:first-child { color: #6b7280 } code { background: #f3f4f6; padding: 0 .25rem } .bad { color: #b91c1c }
"""


def write_report(
    path: Path,
    *,
    summary: Mapping[str, Any],
    account: Account,
    outcomes: Sequence[Outcome],
    losses: Mapping[int, float],
    loss_times: Mapping[int, float],
    origin_s: float,
) -> None:
    """Write the report to ``path``. Times are seconds since 1970; ``origin_s`` becomes zero."""
    pictures = [
        ("Who held each slot", _slots(account, origin_s)),
        ("Time to first token, as the users waited", _ttft(outcomes, account, origin_s)),
        ("Training loss, with preemptions marked", _losses(losses, loss_times, account, origin_s)),
    ]
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(_text(v))}</td></tr>" for k, v in summary.items())
    body = "".join(f"<h2>{html.escape(title)}</h2>{svg}" for title, svg in pictures)
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>ebbtide: one tide</title>"
        f"<style>{STYLE}</style><h1>ebbtide: one tide</h1>"
        f"<p>One pool of {len(by_slot(account.spans))} slots: serving at high tide, training at the ebb.</p>"
        f"{body}<h2>Figures</h2><table>{rows}</table></html>"
    )


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _slots(account: Account, origin_s: float) -> str:
    slots = by_slot(account.spans)
    figure, axes = pyplot.subplots(figsize=(10, 0.6 * len(slots) + 1.2))
    for row, spans in enumerate(slots.values()):
        for span in spans:
            width = span.end_s - span.start_s
            axes.barh(row, width, left=span.start_s - origin_s, color=COLOURS[span.use], height=0.8)
    for use, colour in COLOURS.items():
        axes.barh(0, 0, color=colour, label=use)
    axes.set_yticks(range(len(slots)), [f"slot {name.rpartition(':')[2]}" for name in slots])
    axes.set_xlabel("seconds")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.35), frameon=False)
    return _svg(figure)


def _mark(axes: Any, account: Account, origin_s: float) -> None:
    for at_s, kind in account.preempted_at_s:
        style = "--" if kind == "park_job" else "-."
        axes.axvline(at_s - origin_s, color="#b45309", linestyle=style, linewidth=1)


def _ttft(outcomes: Sequence[Outcome], account: Account, origin_s: float) -> str:
    figure, axes = pyplot.subplots(figsize=(10, 2.6))
    good = [outcome for outcome in outcomes if outcome.ok]
    bad = [outcome for outcome in outcomes if not outcome.ok]
    axes.scatter([o.sent_s - origin_s for o in good], [o.ttft_s for o in good], s=8, color=COLOURS["serving"])
    axes.scatter([o.sent_s - origin_s for o in bad], [o.total_s for o in bad], s=20, color="#b91c1c", marker="x")
    _mark(axes, account, origin_s)
    axes.set_yscale("log")
    axes.set_xlabel("seconds (time of the request)")
    axes.set_ylabel("TTFT, s")
    return _svg(figure)


def _losses(losses: Mapping[int, float], times: Mapping[int, float], account: Account, origin_s: float) -> str:
    figure, axes = pyplot.subplots(figsize=(10, 2.6))
    steps = sorted(losses)
    axes.plot([times[s] - origin_s for s in steps], [losses[s] for s in steps], ".", ms=2, color=COLOURS["training"])
    _mark(axes, account, origin_s)
    axes.set_xlabel("seconds (dashed: parked in place; dash-dotted: restarted with fewer workers)")
    axes.set_ylabel("loss")
    return _svg(figure)
