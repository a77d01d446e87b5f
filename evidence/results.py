"""Every result that can be measured again: its command, its cases, and the processes that each case stands on.

The names are those of the modules that measure (tests/evidence/test_results.py holds them against each other); listed
here so that a report loads neither Ray nor torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evidence.guards.comments import guards_of
from evidence.processes import POOL

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Case:
    """The unit of measuring again.

    Attributes:
        processes: kinds of processes (`evidence.processes`), or modules of the benchmarks that run in one process.
        usual_s: how long it takes as long as no stamp says so.
    """

    name: str
    processes: tuple[str, ...]
    usual_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """A file in benchmarks/results, and the command that measures it."""

    name: str
    command: str
    cases: Callable[[], Iterator[Case]]


KILL_ROLES = (
    "arbiter",
    "replica actor",
    "engine process",
    "training worker",
    "gateway",
    "job driver",
    "Train controller",
    "Serve controller",
    "node agent",
    "raylet",
    "GCS with Redis",
    "GCS without Redis",
)
KILL_MOVES = (
    "parking",
    "replica starting",
    "resuming in place",
    "stopping to go on smaller",
    "nothing (serving and training)",
    "replica draining",
    "growing back",
)
CHAOS_SEEDS = range(1, 13)
SOAK_SEEDS = range(1, 4)
SIM_SEEDS, SIM_BLOCK = 2000, 50
POLICY_WORKLOADS = {  # seconds: benchmarks/results/policy/*.json, took_s
    "64-week": 2400.0,
    "64-week-aggregated": 2400.0,
    "64-burst": 300.0,
    "64-burst-aggregated": 300.0,
    "64-burst-singly": 900.0,
    "64-day-singly": 2400.0,
    "64-flat": 2400.0,
    "512-week": 7200.0,
    "512-burst": 900.0,
    "512-burst-aggregated": 900.0,
    "512-burst-singly": 3600.0,
    "8192-week": 14400.0,
    "8192-burst": 7200.0,
    "8192-burst-aggregated": 7200.0,
}


def kill_case(role: str, move: str) -> str:
    """The name of a cell of the kill table."""
    return f"{role} x {move}"


def sim_case(first: int) -> str:
    """The name of a block of seeds."""
    return f"seeds {first}-{first + SIM_BLOCK - 1}"


def _kills() -> Iterator[Case]:
    # 92 minutes for the 84 cells, pools and their starts included (2 cores, 2026-11-21).
    yield from (Case(kill_case(role, move), POOL, 66.0) for role in KILL_ROLES for move in KILL_MOVES)


def _seeds(seeds: range, usual_s: float) -> Iterator[Case]:
    yield from (Case(f"seed {seed}", POOL, usual_s) for seed in seeds)


def _sim() -> Iterator[Case]:
    for first in range(0, SIM_SEEDS, SIM_BLOCK):
        yield Case(sim_case(first), ("simulated arbiter",), 40.0)


def _line() -> Iterator[Case]:
    yield Case("decide", ("benchmarks.decide",), 60.0)
    yield Case("ledger_commit", ("benchmarks.ledger_commit",), 60.0)
    yield Case("tides", POOL, 400.0)
    yield Case("gateway_overhead", POOL, 600.0)


def _storage() -> Iterator[Case]:
    yield Case("reads", ("benchmarks.bulk.readers", "benchmarks.bulk.weights"), 1226.0)
    yield Case("writes", ("benchmarks.bulk.writers",), 434.0)
    yield Case("loads", ("benchmarks.bulk.engine_loads", "benchmarks.bulk.engine_start", "engine"), 2581.0)


def _preempt() -> Iterator[Case]:
    ways = ("benchmarks.preempt.evictions", "benchmarks.preempt.in_place", "benchmarks.preempt.savers", "helper")
    for size, usual_s in (("0.5GB", 322.0), ("2GB", 657.0), ("6GB", 1745.0)):
        yield Case(size, ways, usual_s)
    yield Case("steady", ("benchmarks.preempt.steady_child",), 1086.0)


def _policy() -> Iterator[Case]:
    yield from (Case(name, ("simulator",), usual_s) for name, usual_s in POLICY_WORKLOADS.items())
    yield Case("decide", ("benchmarks.decide_growth",), 300.0)
    yield Case("fidelity", ("simulator", *POOL), 1620.0)


def _guards() -> Iterator[Case]:
    for guard in guards_of(ROOT):
        yield Case(guard.name, (module_of(guard.file),), 6.0)


def module_of(file: str) -> str:
    """The name under which a file of the product is imported."""
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


RESULTS = (
    Result("kills", "make kills", _kills),
    Result("chaos", "make chaos", lambda: _seeds(CHAOS_SEEDS, 420.0)),
    Result("soak", "make soak", lambda: _seeds(SOAK_SEEDS, 3600.0)),
    Result("sim", "make sim", _sim),
    Result("guards", "make guards", _guards),
    Result("line", "make bench", _line),
    Result("storage", "make bench-storage", _storage),
    Result("preempt", "make bench-preempt", _preempt),
    Result("policy", "make bench-policy TRACES=folder", _policy),
)


def result(name: str) -> Result:
    """By its name."""
    return next(one for one in RESULTS if one.name == name)


def cases_of(name: str) -> list[Case]:
    """Of a result; none of a name that is no result."""
    return [case for one in RESULTS if one.name == name for case in one.cases()]
