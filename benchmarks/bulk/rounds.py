"""Rounds of all contenders, each between two runs of fio; what came of them as rows and bars."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.bulk import fio, readers, writers
from benchmarks.bulk.outcome import Outcome, drop_cached
from benchmarks.bulk.weights import Weights
from benchmarks.rows import Bar, Row, row

CONTENDER_S = 600.0


@dataclass(slots=True)
class Series:
    """One contender over all rounds."""

    outcomes: list[Outcome] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # to the mean of the two fio runs around
    failed: str = ""

    @property
    def ratio(self) -> float:
        """Median, to the ceiling."""
        return median(self.ratios)


@dataclass(slots=True)
class Contest:
    """All contenders of one kind."""

    series: dict[str, Series]
    ceilings: list[fio.Ceiling] = field(default_factory=list)


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of a round, counted from 0: each begins with another one, and nobody comes after the same one again.

    Through all of them in steps of another length each round, modulo a prime: so each length meets them all. Where
    their number is none (four writers), the next prime is taken, and its place without a name comes first. It begins
    anew when the lengths are used up. Not guaranteed for numbers that are neither a prime nor one less: there some come
    after the same one twice.
    """
    count = len(names)
    prime = next(one for one in range(max(2, count), 2 * count + 2) if all(one % low for low in range(2, one)))
    first, step = number if prime == count else prime - 1, 1 + number % (prime - 1)
    places = [(first + turns * step) % prime for turns in range(prime)]
    return [names[place] for place in places if place < count]


def contest(
    names: Sequence[str], rounds: int, ceiling: Callable[[], fio.Ceiling], run: Callable[[str], Outcome]
) -> Contest:
    """Let all run, round by round in turns; who fails once is out, and the reason stands in the result."""
    found = Contest({name: Series() for name in names})
    for number in range(rounds):
        before = ceiling()
        found.ceilings.append(before)
        for name in turn(names, number):
            series = found.series[name]
            if series.failed:
                continue
            try:
                outcome = run(name)
                if outcome.wrong:
                    raise RuntimeError(outcome.wrong)
            except (RuntimeError, subprocess.SubprocessError, OSError) as error:
                series.failed = str(error)[:300]
                print(f"  {name}: out: {series.failed}", flush=True)
                continue
            after = ceiling()
            found.ceilings.append(after)
            series.outcomes.append(outcome)
            series.ratios.append(outcome.gb_per_s / ((before.gb_per_s + after.gb_per_s) / 2))
            print(
                f"  round {number + 1}, {name}: {outcome.gb_per_s:.2f} GB/s, {series.ratios[-1]:.2f} of the ceiling, "
                f"{outcome.cpu_s_per_gb:.3f} CPU s/GB {outcome.modes or ''}",
                flush=True,
            )
            before = after
    return found


def rows_of(case: str, found: Contest) -> list[Row]:
    """Five figures of each, and the ceiling's."""
    rows = [
        row(case, "fio", "GB/s", [one.gb_per_s for one in found.ceilings]),
        row(case, "fio, CPU", "s/GB", [one.cpu_s_per_gb for one in found.ceilings]),
    ]
    for name, series in found.series.items():
        if not series.outcomes:
            continue
        rows.append(row(case, name, "GB/s", [one.gb_per_s for one in series.outcomes]))
        rows.append(row(case, f"{name}, to the ceiling", "ratio", series.ratios))
        rows.append(row(case, f"{name}, CPU", "s/GB", [one.cpu_s_per_gb for one in series.outcomes]))
        peaks = [one.peak_bytes / one.size_bytes for one in series.outcomes]
        rows.append(row(case, f"{name}, memory besides what it had", "x bytes", peaks))
        rows.append(row(case, f"{name}, peak RSS", "bytes", [one.peak_rss_bytes for one in series.outcomes]))
    return rows


# ---- reading


def read_contest(weights: Weights, rounds: int, environment: Mapping[str, str], *, warm: bool, huge: bool) -> Contest:
    """All readers, cold or warm."""
    place = Path(weights.store) / "weights.json"
    weights.save(place)

    def run(name: str) -> Outcome:
        if warm:
            for path in weights.paths:
                _touch(path)
        else:
            drop_cached(weights.paths)
        command = [sys.executable, "-m", "benchmarks.bulk.readers", name, str(place), "warm" if warm else "cold"]
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=CONTENDER_S, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-300:]}")
        return Outcome.from_line(lines[-1])

    return contest(list(readers.READERS), rounds, lambda: fio.read(weights.paths, huge=huge), run)


def read_bars(cold: Contest) -> list[Bar]:
    """What the issue asks of cold reads."""
    ours = cold.series[readers.OURS]
    if not ours.outcomes:
        return [Bar(name, "measured", None, False) for name in ("cold_read_ratio", "cold_read_cpu")]
    cpu = median([one.cpu_s_per_gb for one in ours.outcomes])
    bars = [
        Bar("cold_read_ratio", ">= 0.95 of fio, hashed", round(ours.ratio, 3), ours.ratio >= 0.95),
        Bar("cold_read_cpu", "<= 0.06 CPU s/GB", round(cpu, 4), cpu <= 0.06),
    ]
    peers = {name: cold.series[name] for name in readers.RETURN_TENSORS if cold.series[name].outcomes}
    kvikio = cold.series[readers.KVIKIO]
    if not peers or not kvikio.outcomes:
        missing = [name for name in (*readers.RETURN_TENSORS, readers.KVIKIO) if not cold.series[name].outcomes]
        return [*bars, Bar("cold_read_vs_peers", f"not measured: {', '.join(missing)}", None, False)]
    to_best = ours.ratio / max(one.ratio for one in peers.values())
    to_kvikio = ours.ratio / kvikio.ratio
    met = to_best > 1.0 and to_kvikio >= 0.97
    goal = f"> 1 x the best that returns tensors, and >= 0.97 x kvikio (here {to_kvikio:.3f})"
    return [*bars, Bar("cold_read_vs_peers", goal, round(min(to_best, to_kvikio), 3), met)]


def _touch(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


# ---- writing


def write_contest(directory: Path, size_bytes: int, rounds: int, *, huge: bool) -> Contest:
    """All writers, in one process, which has the state in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.bulk.writers", str(directory), str(size_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            if child.stdout.readline().strip() != "ready":
                raise RuntimeError("the process of the writers did not start")

            def run(name: str) -> Outcome:
                assert child.stdin is not None and child.stdout is not None
                child.stdin.write(f"{name}\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if not line:
                    raise RuntimeError(f"the process of the writers ended at {name}")
                return Outcome.from_line(line)

            return contest(list(writers.WRITERS), rounds, lambda: fio.write(directory, size_bytes, huge=huge), run)
        finally:
            child.stdin.close()


def write_bars(found: Contest) -> list[Bar]:
    """What the issue asks of durable writes."""
    ours, dcp = found.series[writers.OURS], found.series[writers.DCP]
    if not ours.outcomes or not dcp.outcomes:
        return [Bar(name, "measured", None, False) for name in ("durable_write_ratio", "durable_write_vs_dcp")]
    to_dcp = ours.ratio / dcp.ratio
    return [
        Bar("durable_write_ratio", ">= 0.90 of fio", round(ours.ratio, 3), ours.ratio >= 0.90),
        Bar("durable_write_vs_dcp", ">= 3 x DCP", round(to_dcp, 2), to_dcp >= 3.0),
    ]
