"""The figures of a simulation as tables, for a terminal and a page alike. Pure.

Every rival stands in two tables. In the first all have our starts and our ways to step aside, so that they differ by
their policy only; in the second each has its own system: replicas start cold, jobs are killed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide_simulator.policies.contenders import ORACLE, OURS, STATIC

OWN = "-own"
WITH_OURS = "with our starts and preemptions: what the policy does"
WITH_THEIRS = "with their own: what the system does"
CAUSES = {  # a cause's name in the figures, and on the page
    "lost": "lost steps",
    "saving": "save",
    "loading": "load, restart",
    "starting": "replica start",
    "draining": "drain",
    "idle-reserved": "idle, reserved",
    "fragmentation": "fragmentation",
}
_COLUMNS = (
    "policy",
    "in time",
    "worst 5 min",
    "goodput",
    "to oracle",
    "to static",
    "waste",
    "queue p50",
    "jct mean",
    "preempted max",
)


@dataclass(frozen=True, slots=True)
class Table:
    """What a table holds, as text; ``note``: what to know when reading it, if anything."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def comparison_tables(policies: Mapping[str, Mapping[str, Any]]) -> tuple[Table, ...]:
    """Those with our mechanisms, and where rivals play with their own, those beside us; each if anybody is in it."""
    ours = {name: one for name, one in policies.items() if not name.endswith(OWN)}
    found = [Table(WITH_OURS, _COLUMNS, tuple(_rows(ours)), _above_oracle(ours))] if ours else []
    if len(ours) < len(policies):
        beside = {n: one for n, one in policies.items() if n.endswith(OWN) or n in (OURS, ORACLE, STATIC)}
        found.append(Table(WITH_THEIRS, _COLUMNS, tuple(_rows(beside)), _above_oracle(beside)))
    return tuple(found)


def _above_oracle(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Why somebody trains more than perfect foresight, since it looks like a mistake."""
    ratios = {name: one.get("goodput_vs_oracle") for name, one in policies.items()}
    above = [name for name, ratio in ratios.items() if ratio is not None and round(ratio["mean"], 3) > 1.0]
    if not above:
        return ""
    in_time = ", ".join(f"{name} {policies[name]['slo_attainment']['mean']:.3%}" for name in (*above, ORACLE))
    return (
        f"Training more than {ORACLE} is no contradiction with fewer requests in time ({in_time}), or where requests "
        f"are played one by one, for which {ORACLE} does not plan; its other plans are `foresight` in the JSON."
    )


def waste_table(policies: Mapping[str, Mapping[str, Any]]) -> Table:
    """Shares of the pool that neither served nor trained, by cause."""
    rows = tuple(
        (name, *(f"{one['waste'][cause]['mean']:.2%}" for cause in CAUSES), f"{one['waste_share']['mean']:.2%}")
        for name, one in policies.items()
    )
    return Table("Waste by cause", ("policy", *CAUSES.values(), "all"), rows)


def moves_table(policies: Mapping[str, Mapping[str, Any]]) -> Table:
    """How long slots take to change hands, and how often jobs were preempted."""
    columns = (
        "policy",
        "lend p50",
        "p99",
        "reclaim p50",
        "p99",
        "replica p50",
        "p99",
        "in time",
        "per 1000 GPU-h",
        "> 3",
    )
    rows = []
    for name, one in policies.items():
        times = [
            figure_text(one[what][p], 1, " s") for what in ("lend_s", "reclaim_s", "replica_s") for p in ("p50", "p99")
        ]
        often = figure_text(one["preemptions_per_1000_gpu_h"], 1), f"{one['jobs_preempted_often']['mean']:.0f} jobs"
        rows.append((name, *times, f"{one['on_time_share']['mean']:.1%}", *often))
    return Table("Slots that change hands", columns, tuple(rows))


def held_to(bars: Mapping[str, Mapping[str, Any]]) -> Table:
    """Each bar, and whether it is met."""
    rows = []
    for name, bar in bars.items():
        goal = goal_of(bar)
        if bar["value"] is None:
            rows.append((name, "-", goal, f"not measured: {bar['why']}"))
        else:
            rows.append((name, f"{bar['value']:.4g}", goal, "met" if bar["met"] else "missed"))
    return Table("Bars", ("bar", "value", "goal", ""), tuple(rows))


def goal_of(bar: Mapping[str, Any]) -> str:
    """What it is held to; where that is another's figure, it may be lacking too."""
    least, most = bar.get("at_least"), bar.get("at_most")
    if least is not None:
        return f"at least {least:.4g}"
    return "-" if most is None else f"at most {most:.4g}"


def _rows(policies: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, one in policies.items():
        yield (
            name,
            f"{one['slo_attainment']['mean']:.3%}",
            f"{one['slo_worst_5min']['mean']:.1%}",
            f"{one['goodput_gpu_s']['mean'] / 3600:,.0f} GPU-h",
            figure_text(one.get("goodput_vs_oracle")),
            figure_text(one.get("goodput_vs_static")),
            f"{one['waste_share']['mean']:.2%}",
            figure_text(one["queue_s"]["p50"], 0, " s"),
            figure_text(one["jct_s"]["mean"], 0, " s"),
            f"{one['preemptions_per_job_max']['mean']:.0f}",
        )


def figure_text(figure: Mapping[str, float | None] | None, digits: int = 3, unit: str = "") -> str:
    """A figure's mean; nobody may read that of nothing as a zero."""
    mean = None if figure is None else figure["mean"]
    return "-" if mean is None else f"{mean:,.{digits}f}{unit}"
