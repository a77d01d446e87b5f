"""From the journal to a result: rows, bars, and the table that is printed last. Pure, but for rich."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.gpu.line.journal import State, Told
from benchmarks.rows import Bar, Row, result, row

NAME = "gpu_line"
COMMAND = "python -m benchmarks.gpu.line"
UNITS = {"_s": "s", "_mb": "MB", "_bytes": "bytes"}
# name: goal, (phase, figure), most; the last step under way is not counted, so it is taken off.
GPU_FREE_S, GPU_RESUME_S, WAKE_S = 2.0, 2.0, 1.0
GOALS = {
    "gpu_free_s": "<= 2 s from the decision to the GPU's memory at its idle level, beyond the step under way; 20 GB",
    "gpu_resume_s": "<= 2 s from the decision to training again; 20 GB",
    "gpu_loss_bit_equal": "1: losses and samples of all compared steps, stops among them, as in the control run",
    "gpu_wake_s": "<= 1 s for a warm replica of the 1 B model",
}


def rows_of(phases: Mapping[str, Told]) -> list[Row]:
    """Every figure that has a unit, each measured once."""
    found = []
    for name, told in phases.items():
        if told.state in (State.DONE, State.FAILED):
            found.append(row(name, "took", "s", [told.seconds]))
        for figure, value in told.figures.items():
            unit = next((unit for end, unit in UNITS.items() if figure.endswith(end)), "")
            if isinstance(value, bool):
                found.append(row(name, figure, "ratio", [float(value)]))
            elif isinstance(value, int | float):
                found.append(row(name, figure, unit or "count", [float(value)]))
            elif isinstance(value, Mapping) and figure.endswith("stages_s"):
                found += [row(name, f"{figure.removesuffix('s_s')}: {stage}", "s", [v]) for stage, v in value.items()]
    return found


def bars_of(phases: Mapping[str, Told], *, dry: bool) -> list[Bar]:
    """A dry run meets only what it can show: that the losses are equal."""

    def figure(phase: str, name: str) -> float | None:
        value = phases[phase].figures.get(name) if phase in phases else None
        return None if value is None else float(value)

    free, step = figure("large job", "gpu_free_s"), figure("large job", "step_s")
    resume = figure("large job", "resume_s")
    equal = phases["control"].figures if "control" in phases else {}
    bit = None
    if "losses_equal" in equal:
        bit = float(equal["losses_equal"] and equal["samples_equal"])
        if bit and not equal["stops_compared"]:
            bit = None  # what was not compared is not shown to be equal
    beyond = None if free is None else max(0.0, free - (step or 0.0))
    most = {
        "gpu_free_s": (None if dry else beyond, GPU_FREE_S),
        "gpu_resume_s": (None if dry else resume, GPU_RESUME_S),
        "gpu_wake_s": (None if dry else figure("warm", "wake_s"), WAKE_S),
    }
    bars = [
        Bar(name, GOALS[name], None if value is None else round(value, 3), value is not None and value <= limit)
        for name, (value, limit) in most.items()
    ]
    return [*bars, Bar("gpu_loss_bit_equal", GOALS["gpu_loss_bit_equal"], bit, bit == 1.0)]


def document(
    phases: Mapping[str, Told],
    samples: Sequence[Mapping[str, Any]],
    modes: Mapping[str, Sequence[str]],
    *,
    dry: bool,
    took_s: float,
    cut_off: bool,
) -> dict[str, Any]:
    """The whole result, in the form of all of them, with what each phase said."""
    facts = phases["machine"].figures if "machine" in phases else {}
    found: dict[str, Any] = result(
        NAME + ("_dry_run" if dry else ""),
        COMMAND + (" --dry-run-cpu" if dry else ""),
        rows_of(phases),
        bars_of(phases, dry=dry),
    )
    if "gpu" in facts:
        ram_gib = facts.get("ram_bytes", 0) / 2**30
        found["hardware"] = (
            f"{facts['gpu']}, driver {facts['driver']}; {facts['cpus']} CPU cores, {ram_gib:.0f} GiB, "
            f"Linux {facts['kernel']}"
        )
    return found | {
        "took_s": round(took_s, 1),
        "cut_off": cut_off,
        "modes": {place: list(taken) for place, taken in modes.items()},
        "phases": [
            {"phase": name, "state": told.state, "seconds": told.seconds, "why": told.why, "figures": told.figures}
            for name, told in phases.items()
        ],
        "gpu_memory": list(samples),
    }


def table(phases: Mapping[str, Told]) -> Table:
    """For people."""
    made = Table(title="the line on a GPU", title_justify="left", box=None, header_style="bold")
    for column in ("phase", "state", "s", "what it showed"):
        made.add_column(column, justify="right" if column == "s" else "left")
    for name, told in phases.items():
        style = {State.DONE: None, State.SKIPPED: "dim"}.get(told.state, "bold red")
        shown = ", ".join(f"{key} {_shown(value)}" for key, value in told.figures.items() if _fits(value))
        made.add_row(name, told.state, f"{told.seconds:.1f}", "\n".join(filter(None, [told.why, shown])), style=style)
    return made


def _fits(value: object) -> bool:
    return value is not None and not isinstance(value, dict | list) and len(str(value)) < 80


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
