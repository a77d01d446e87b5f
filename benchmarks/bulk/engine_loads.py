"""Seconds to the first token by each way to load, bytes for each rank, and what restored caches are worth.

The model has the shape of Llama 3.2 1B in bf16, but a vocabulary of 8,192 instead of 128,256 tokens: 2.0 GB. So a
header is nothing beside the weights, all layers are compiled, and an engine still starts in a time that allows rounds.
Eight gigabytes are what the reads are measured with. More layers take longer to compile, and to take from a cache much
less so: what restored caches are worth grows with them.

All ways to load are compared with eager engines whose inspected model classes are restored, so that what differs is
the load. For what restored caches are worth, engines compile; ``without`` is the same replica told to keep none.

With two ranks nothing is restored. They take twice as long to start, so they have fewer rounds: three rounds of
everything else and two of these take some 36 minutes on two cores, five of all more than an hour. A kind of start that
fails twice is not tried again.

Bytes are told twice: by our load formats (*bytes read*), and for all by the kernel, for the rank's whole process
(*from the disk*, `Started`). vLLM's own loader maps the files, and two ranks on one machine share the pages: each page
counts for the rank that needed it first.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.bulk.starts import Started, StartFailed, Starts, Wanted
from benchmarks.progress import Progress
from benchmarks.record import Gap, Measured
from benchmarks.rows import Bar, row

ROUNDS, QUICK_ROUNDS = 3, 1
TP2_ROUNDS = 2
LAYERS, QUICK_LAYERS = 16, 2
WAYS = {"engine": "vllm", "checkpoint": "ebbtide", "flat": "ebbtide_flat"}
"""By ``load.weights`` of an endpoint: the load format that it should come to; ``engine`` is vLLM's own."""
ARTEFACT_GOAL, TP2_GOAL = 2.0, 0.5
TP2_SLACK = 1.02  # what cannot be cut (norms, rotary tables) is read by each rank: less than 1 % of this model
TRIES = 2
COMPILED_WEIGHT = 2.0  # a start that compiles, in starts that do not; only for the time left


@dataclass(frozen=True, slots=True)
class Step:
    """One start of the plan. ``case`` and ``name`` are those of its rows; a set-up has none and counts for nothing."""

    wanted: Wanted
    case: str = ""
    name: str = ""
    round: int = 0

    @property
    def kind(self) -> tuple[str, str]:
        """What is given up when it fails again and again."""
        return self.case, self.name

    def in_words(self) -> str:
        """For progress."""
        if self.case:
            return f"{self.case}, {self.name}, round {self.round}"
        how = "compiled" if self.wanted.compiled else "eager"
        return f"set-up: {how}, TP={self.wanted.ranks}, {self.wanted.weights}"


@dataclass(slots=True)
class Outcomes:
    """What came of each step, by case and name."""

    started: dict[tuple[str, str], list[Started]] = field(default_factory=dict)
    failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def of(self, case: str, name: str) -> list[Started]:
        """Those that came to a first token."""
        return self.started.get((case, name), [])


def plan(rounds: int) -> list[Step]:
    """All starts, in order. What is compared is interleaved, and every other round goes the other way about."""
    engine, flat = Wanted("engine", settle=True), Wanted("flat", settle=True)
    steps = [Step(engine), Step(flat), Step(Wanted("flat", compiled=True, settle=True))]
    for number in range(1, rounds + 1):
        for state, cold in (("cold", True), ("warm", False)):
            ways = [Step(Wanted(way, cold=cold), f"{TP1}, {state}", way, number) for way in WAYS]
            steps += _turned(ways, number)
    for number in range(1, rounds + 1):
        for state, cold in (("cold", True), ("warm", False)):
            sides = [
                Step(
                    Wanted("flat", caches=restored, compiled=True, cold=cold), f"compiled start, {state}", name, number
                )
                for restored, name in ((False, WITHOUT), (True, RESTORED))
            ]
            steps += _turned(sides, number)
    # The first with two ranks finds no flat form for two, so it reads the checkpoint, and leaves the flat form.
    steps.append(Step(Wanted("flat", caches=False, ranks=2, settle=True)))
    for number in range(1, min(rounds, TP2_ROUNDS) + 1):
        for state, cold in (("cold", True), ("warm", False)):
            ways = [Step(Wanted(way, caches=False, ranks=2, cold=cold), f"{TP2}, {state}", way, number) for way in WAYS]
            steps += _turned(ways, number)
    return steps


WITHOUT, RESTORED, TP1, TP2 = "no caches", "restored caches", "engine start", "engine start, TP=2"


def measure(folder: Path, *, quick: bool) -> Measured:
    """Make the model, start all engines of the plan, and give the rows and bars."""
    layers, rounds = (QUICK_LAYERS, QUICK_ROUNDS) if quick else (LAYERS, ROUNDS)
    model = folder / "model"
    print("  making a model", flush=True)
    command = [sys.executable, "-m", "benchmarks.bulk.larger_model", str(model), "--layers", str(layers)]
    subprocess.run(command, check=True)
    steps = plan(rounds)
    outcomes = run(steps, Starts(folder, model).start)
    measured = measured_of(outcomes)
    weights_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    measured.sizes = {
        "model": f"Llama 3.2 1B with {layers} of its 16 layers and a vocabulary of 8192, bf16, batches of 16 tokens",
        "model_bytes": weights_bytes,
        "rounds": rounds,
        "rounds_tp2": min(rounds, TP2_ROUNDS),
        "engine_starts": len(steps),
    }
    return measured


def run(steps: list[Step], start: Callable[[Wanted], Started]) -> Outcomes:
    """Start one after the other; one that fails is told of, and the others go on."""
    outcomes = Outcomes()
    progress = Progress("start", [COMPILED_WEIGHT if step.wanted.compiled else 1.0 for step in steps])
    for step in steps:
        print(progress.begins(step.in_words()), flush=True)
        if len(outcomes.failed.get(step.kind, ())) >= TRIES:
            print(progress.ended(f"left out: it failed {TRIES} times"), flush=True)
            continue
        try:
            found = start(step.wanted)
            if why := wrong(step, found):
                raise StartFailed(why)
        except (StartFailed, OSError) as error:
            outcomes.failed.setdefault(step.kind, []).append(str(error))
            print(progress.ended(f"FAILED: {error}"), flush=True)
            continue
        outcomes.started.setdefault(step.kind, []).append(found)
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found.stages_s.items())
        told = f"first token after {found.seconds:.1f} s, {found.cpu_s:.1f} s of CPU ({stages})"
        print(progress.ended(told), flush=True)
    return outcomes


def wrong(step: Step, found: Started) -> str:
    """Why a start is not what was to be measured; empty if it is."""
    wanted = step.wanted
    if not step.case:
        return ""
    way = WAYS[wanted.weights]
    if found.ways != (way,) * wanted.ranks:
        return f"asked for {way} on {wanted.ranks} ranks, loaded by {', '.join(found.ways) or 'nothing'}"
    if wanted.caches != bool(found.restored_bytes):
        return f"caches {'wanted' if wanted.caches else 'not wanted'}, and {found.restored_bytes} bytes were restored"
    return ""


def measured_of(outcomes: Outcomes) -> Measured:
    """Rows, bars and gaps of all starts."""
    found = Measured()
    for (case, name), starts in outcomes.started.items():
        if not case:
            continue
        found.rows.append(row(case, f"first token, {name}", "s", [one.seconds for one in starts]))
        found.rows.append(row(case, f"CPU until then, {name}", "s", [one.cpu_s for one in starts]))
        for stage in _stages(starts):
            seconds = [one.stages_s.get(stage, 0.0) for one in starts]
            found.rows.append(row(case, f"{stage}, {name}", "s", seconds))
        for rank, counts in enumerate(zip(*(one.disk_bytes_by_rank for one in starts), strict=False)):
            found.rows.append(row(case, f"from the disk, {name}, rank {rank}", "bytes", counts))
    for (case, name), reasons in outcomes.failed.items():
        gap = f"{len(reasons)} failed: {reasons[-1]}"
        found.gaps.append(Gap(case or "set-up", f"first token, {name}" if name else "starts", gap))
    found.bars += [_tp2(outcomes, found), _artefacts(outcomes, found)]
    return found


def _turned(steps: list[Step], number: int) -> Iterable[Step]:
    return steps if number % 2 else reversed(steps)


def _stages(starts: list[Started]) -> list[str]:
    """In the order in which they come."""
    return list(Counter(stage for one in starts for stage in one.stages_s))


def _tp2(outcomes: Outcomes, found: Measured) -> Bar:
    """Of what our formats tell; the most that any rank read, by the least of one rank alone."""
    name, goal = "tp2_bytes_per_rank", f"{TP2_GOAL} of TP=1's bytes"

    def bytes_of(case: str, way: str) -> list[tuple[int, ...]]:
        starts = [*outcomes.of(f"{case}, cold", way), *outcomes.of(f"{case}, warm", way)]
        return [one.bytes_by_rank for one in starts]

    for way in ("checkpoint", "flat"):
        for ranks, case in ((1, TP1), (2, TP2)):
            for rank, counts in enumerate(zip(*bytes_of(case, way), strict=True)):
                found.rows.append(row("bytes read", f"{way}, TP={ranks}, rank {rank}", "bytes", counts))
    whole, halves = bytes_of(TP1, "flat"), bytes_of(TP2, "flat")
    if not whole or not halves:
        return Bar(name, f"no start with {'two ranks' if whole else 'one rank'} from the flat form", None, False)
    share = max(map(max, halves)) / min(map(min, whole))
    return Bar(name, goal, round(share, 4), share <= TP2_GOAL * TP2_SLACK)


def _artefacts(outcomes: Outcomes, found: Measured) -> Bar:
    """The worse of cold and warm counts."""
    name, goal = "artefact_restart", f">= {ARTEFACT_GOAL} x sooner"
    ratios: Mapping[str, float] = {}
    for state in ("cold", "warm"):
        case = f"compiled start, {state}"
        without, restored = outcomes.of(case, WITHOUT), outcomes.of(case, RESTORED)
        if not without or not restored:
            return Bar(name, f"no start, {state}, with {RESTORED if without else WITHOUT}", None, False)
        ratio = median(one.seconds for one in without) / median(one.seconds for one in restored)
        ratios = {**ratios, state: ratio}
        found.rows.append(row(case, f"{WITHOUT} to {RESTORED}", "ratio", [ratio]))
    worst = min(ratios.values())
    return Bar(name, goal, round(worst, 3), worst >= ARTEFACT_GOAL)
