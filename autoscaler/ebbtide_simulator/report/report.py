"""What a simulation says: all runs, as JSON, as tables and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide.pool.plural import many
from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.contenders import CONTENDERS, ORACLE, STATIC, knobs_of
from ebbtide_simulator.policies.contradictions import contradictions
from ebbtide_simulator.policies.knobs import Knobs
from ebbtide_simulator.report.bars import bars
from ebbtide_simulator.report.beside import beside, recorded_figures
from ebbtide_simulator.report.frontier import point
from ebbtide_simulator.report.page import Picture, page
from ebbtide_simulator.report.tables import CAUSES, Table, comparison_tables, held_to, moves_table, waste_table
from ebbtide_simulator.run.bound import is_flat, serving_slots
from ebbtide_simulator.run.run import COURSE_S
from ebbtide_simulator.run.score import over_seeds
from ebbtide_simulator.scenes.casting import File, Given, provenance, scene
from ebbtide_simulator.scenes.replay import Recorded


@dataclass(slots=True)
class Report:
    """Figures by contender and seed; ``recorded``: those of the ledger that is played again."""

    inputs: dict[str, Any]
    recorded: dict[str, Any] | None = None
    runs: dict[str, dict[int, Played]] = field(default_factory=dict)
    points: dict[str, list[tuple[Knobs, Played]]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: File, inputs: Given, seeds: int) -> "Report":
        """Nothing is played yet. Raises BadTrace: the first seed's scene cannot be."""
        given = scene(file, inputs, 0)
        needed = serving_slots(given)
        return cls(
            {
                "slots": given.slots,
                "hours": given.horizon_s / 3600,
                "warm_up_hours": given.warm_up_s / 3600,
                "seeds": seeds,
                "jobs_taken": len(given.jobs),
                "serving_slots": {"mean": needed.mean(), "max": needed.max(), "min": needed.min()},
                "flat": is_flat(given),
            }
            | provenance(file, inputs, given),
            recorded_figures(inputs.recording) if isinstance(inputs, Recorded) else None,
        )

    def add(self, name: str, seed: int, found: Played) -> None:
        """One run has ended."""
        self.runs.setdefault(name, {})[seed] = found

    def add_point(self, name: str, knobs: Knobs, found: Played) -> None:
        """A run of the first seed with other settings has ended."""
        self.points.setdefault(name, []).append((knobs, found))

    def as_json(self, took_s: float) -> dict[str, Any]:
        """Everything, contenders in the order of their table."""
        policies = {}
        for name in self._names():
            runs = [self._against(seed, found.figures) for seed, found in sorted(self.runs[name].items())]
            policies[name] = over_seeds(runs)
        frontier = {"frontier": {name: self._frontier(name) for name in self._names()}} if self.points else {}
        return {
            "policies": policies,
            "seeds": self.inputs["seeds"],
            "inputs": self.inputs,
            "bars": bars(self.inputs["slots"], policies, flat=self.inputs.get("flat", False)),
            "impossible": self.impossible(),
            "decide_ms": self._decide_ms(),
            "run_s": {name: max(run.took_s for run in self.runs[name].values()) for name in self._names()},
            "took_s": took_s,
            "foresight": {str(seed): list(plans) for seed, plans in sorted(self._others().items())},
        } | (frontier if self.recorded is None else frontier | {"recorded": self.recorded})

    def _decide_ms(self) -> dict[str, dict[str, float]]:
        """Of those who were clocked, which foresight with a fluid is not: it has played before."""
        found = {name: _highest([run.decide_ms for run in self.runs[name].values()]) for name in self._names()}
        return {name: one for name, one in found.items() if one}

    def _frontier(self, name: str) -> list[dict[str, Any]]:
        """The first seed at all settings, the most training first."""
        found = [point(knobs, one.figures) for knobs, one in self.points.get(name, [])]
        found.append(point(knobs_of(name), self.runs[name][0].figures))
        return sorted(found, key=lambda one: (-float(one["goodput_gpu_s"]), str(one)))  # runs end in any order

    def _against(self, seed: int, found: dict[str, Any]) -> dict[str, Any]:
        static = self.runs.get(STATIC, {}).get(seed)
        oracle = self.runs.get(ORACLE, {}).get(seed)
        more = {"goodput_vs_bound": _ratio(found["goodput_gpu_s"], found["bound_gpu_s"])}
        for name, other in (("goodput_vs_static", static), ("goodput_vs_oracle", oracle)):
            if other is not None:
                more[name] = _ratio(found["goodput_gpu_s"], other.figures["goodput_gpu_s"])
        return found | more

    def impossible(self) -> list[str]:
        """What cannot be if the simulator is sound: see `contradictions`."""
        runs = {name: {seed: one.figures for seed, one in self.runs[name].items()} for name in self._names()}
        oracle = ORACLE if self.inputs.get("requests") != "singly" else None
        return contradictions(runs, oracle, self._others())

    def _others(self) -> dict[int, Sequence[Mapping[str, float]]]:
        """What foresight's other plans came to, by seed."""
        return {seed: one.others for seed, one in self.runs.get(ORACLE, {}).items() if one.others}

    def _names(self) -> list[str]:
        return [name for name in CONTENDERS if name in self.runs]

    def title(self) -> str:
        """What was simulated."""
        one = self.inputs
        jobs, seeds = many(one["jobs_taken"], "job"), many(one["seeds"], "seed")
        return f"{many(one['slots'], 'GPU')}, {one['hours']:.1f} hours, {jobs}, {seeds}"

    def as_page(self) -> str:
        """As HTML."""
        found = self.as_json(0.0)
        policies = found["policies"]
        return page(
            self.title(),
            [self._tables(policies), (waste_table(policies), moves_table(policies)), (held_to(found["bars"]),)],
            {
                name: Picture(
                    (one["goodput_gpu_s"]["mean"], one["slo_attainment"]["mean"]),
                    [(at["goodput_gpu_s"], at["slo_attainment"]) for at in found.get("frontier", {}).get(name, [])],
                    {cause: one["waste"][cause]["mean"] for cause in CAUSES},
                    self.runs[name][min(self.runs[name])].course,
                )
                for name, one in policies.items()
            },
            self.inputs.get("remarks", []) + found["impossible"],
            course_s=self.recorded["course_s"] if self.recorded else COURSE_S,
            recorded=self.recorded["course"] if self.recorded else None,
        )

    def tables(self) -> Sequence[Table]:
        """Those in which everybody stands."""
        return self._tables(self.as_json(0.0)["policies"])

    def _tables(self, policies: Mapping[str, Mapping[str, Any]]) -> Sequence[Table]:
        really = (beside(self.recorded, policies),) if self.recorded is not None else ()
        return (*really, *comparison_tables(policies))


def _highest(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of the seeds' figures, each of those that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: max(run[name] for run in runs if name in run) for name in names}


def _ratio(some: float, of: float) -> float | None:
    """None: there was nothing to compare with."""
    return some / of if of else None
