"""The parts of a run, in their order, and how much of the time each may take. Pure but for finding test modules.

Every part has a bound of its own, and leaves the later ones the least that they need: so a run ends within its budget
whatever hangs, and a part that hangs does not take the others' time.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ci.part import Unit

CHECK, TEST, CLUSTERS, HUNTS = "check", "test", "clusters", "hunts"

SHARED = "modules that share a cluster"
WITHOUT_CLUSTER = "not ray and not hunt"
WITH_CLUSTER = "ray and not hunt"

# On 2 cores: tests of processes wait more than they work, with 2 at a time half of the machine idled.
TOGETHER = 4

PATIENCE = 4.0  # times its usual duration: then a module is cut off
LEAST_S = 420.0  # and none before: pytest ends a test after 300 s, a cluster starts within 60 on a slow machine


@dataclass(frozen=True, slots=True)
class Share:
    """Of the budget, in minutes: the most that a part may take, and what it must leave to the parts after it."""

    most_min: float
    leave_min: float


# A slow day, 2026-11-27: check 4, tests 26, clusters 40 minutes. On a quiet one 2, 10 and 18.
SHARES = {CHECK: Share(8, 50), TEST: Share(28, 25), CLUSTERS: Share(45, 0), HUNTS: Share(60, 0)}


def limit_s(part: str, left_s: float) -> float:
    """How long a part may take, of what is left of the budget."""
    share = SHARES[part]
    return max(min(60 * share.most_min, left_s - 60 * share.leave_min), min(60.0, left_s))


def checks(bin_dir: str) -> tuple[tuple[str, ...], ...]:
    """The commands of ``make check``."""
    python = sys.executable
    return (
        (f"{bin_dir}/ruff", "format", "--check", "."),
        (f"{bin_dir}/ruff", "check", "."),
        (f"{bin_dir}/mypy",),
        (f"{bin_dir}/lint-imports",),
        (python, "-m", "evidence.guards", "check"),
        (python, "-m", "evidence.guards", "page", "--check"),
        (python, "-m", "pytest", "-q", "tests/test_layout.py"),
    )


def without_cluster() -> Unit:
    """All tests that need no Ray cluster, in one pytest."""
    return Unit(TEST, ("-n", str(TOGETHER), "-p", "ci.deal", "-p", "ci.no_cluster", "-m", WITHOUT_CLUSTER))


def modules(tests: Sequence[str]) -> list[str]:
    """The modules of tests, each once, in their order."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def with_clusters(
    found: Sequence[str], shared: Collection[str], mark: str, usual_s: Mapping[str, float]
) -> list[tuple[Unit, float]]:
    """A pytest for each module, the longest first, with the time after which it is cut off.

    Ray keeps state of the last cluster that a process was joined to, so a module with a pool or Serve has a process of
    its own. Modules of ``shared`` need neither, and have one process and one cluster together.
    """
    together = tuple(name for name in found if name in shared)
    units = [Unit(name, ("-q", "-m", mark, name)) for name in found if name not in shared]
    if together:
        units.append(Unit(SHARED, ("-q", "-m", mark, *together)))
    ordered = sorted(units, key=lambda unit: -usual_s.get(unit.name, LEAST_S))
    return [(unit, max(LEAST_S, PATIENCE * usual_s.get(unit.name, 0.0))) for unit in ordered]
