"""A whole run within its budget: check, test, clusters, then hunts as long as there is time."""

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ci import command, hunts, parts, usual
from ci.part import Part, Unit, run_part
from ci.progress import read
from ci.summary import Result, lines, write
from ci.told import FILE

ROOT = Path(__file__).parents[1]
OUT = Path("out") / "ci" / "summary.json"
LAST_WORDS_S = 20.0  # of the budget: to end what still runs, and to print
COLLECT_S = 240.0


class Interrupted(BaseException):
    """SIGTERM or Ctrl-C."""


def run(*, budget_min: float, began_s: float, tries: int, commit: str) -> Result:
    """All parts; ``began_s`` is when ``.ci/run`` began, in seconds since 1970."""
    set_up_s = time.time() - began_s
    result = Result(commit, budget_min, hardware(), set_up_s)
    until_s = time.monotonic() + 60 * budget_min - set_up_s - LAST_WORDS_S
    with interruptible():
        try:
            for name, part in ((parts.CHECK, check), (parts.TEST, test), (parts.CLUSTERS, clusters)):
                limit_s = parts.limit_s(name, until_s - time.monotonic())
                result.parts.append(part(limit_s=limit_s, tries=tries))
            known = usual.load()
            result.slowness = hunts.slowness({part.name: part.took_s for part in result.parts}, known.parts_s)
            found = hunt(until_s=until_s, tries=tries, commit=commit, slowness=result.slowness)
            result.parts.append(found[0])
            result.not_begun = found[1]
        except Interrupted:
            result.interrupted = True
    result.took_s = time.time() - began_s
    return result


def check(*, limit_s: float, tries: int = 1) -> Part:
    """Formats, lint, types, contracts, guards, layout; none is tried again."""
    part = Part(parts.CHECK)
    began_s = time.monotonic()
    for words in parts.checks(str(Path(sys.executable).parent)):
        name = " ".join([Path(words[0]).name, *words[1:]])
        print(f"ci: {name}", flush=True)
        ended = command.run(words, limit_s=began_s + limit_s - time.monotonic())
        part.outcomes[name] = "passed" if ended.code == 0 else "failed"
        part.units_s[name] = ended.seconds
        if ended.code is None:
            part.notes.append(f"{name} was cut off after {ended.seconds:.0f} s")
    part.took_s = time.monotonic() - began_s
    return part


def test(*, limit_s: float, tries: int) -> Part:
    """All tests without a cluster."""
    unit = parts.without_cluster()
    return run_part(parts.TEST, [(unit, limit_s)], until_s=time.monotonic() + limit_s, tries=tries)


def clusters(*, limit_s: float, tries: int) -> Part:
    """Tests with a real Ray cluster, a process for each module."""
    end_s = time.monotonic() + limit_s
    found = collect(parts.WITH_CLUSTER, "mark.ray")
    shared = [name for name in found if "mark.shares_cluster" in (ROOT / name).read_text()]
    units = parts.with_clusters(found, shared, parts.WITH_CLUSTER, usual.load().modules_s)
    return run_part(parts.CLUSTERS, units, until_s=end_s, tries=tries)


def hunt(*, until_s: float, tries: int, commit: str, slowness: float) -> tuple[Part, list[str]]:
    """Hunts, in the turn of this commit; those for which there was no time."""
    not_begun: list[str] = []
    usual_s = usual.load().hunts_s
    found = collect(hunts.MARKED, "mark.hunt", "hunts import", "turns import")
    found += [hunts.PROPERTIES + name for name in collect(hunts.OF_PROPERTIES, "hypothesis import")]

    def that_fit() -> Iterator[tuple[Unit, float]]:
        for name in hunts.in_turn(commit, found):
            budget = hunts.Budget(until_s - time.monotonic(), slowness)
            takes_s = usual_s.get(name, hunts.UNKNOWN_S)
            if budget.allows(takes_s):
                yield hunts.unit(name), budget.limit_s(takes_s)
            else:
                not_begun.append(name)

    return run_part(parts.HUNTS, that_fit(), until_s=until_s, tries=tries), not_begun


def collect(mark: str, *words: str) -> list[str]:
    """The modules that have tests with ``mark``; only those are looked into that have one of ``words``."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(word in path.read_text() for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="told-") as folder:
        told, log = Path(folder) / "told.jsonl", Path(folder) / "log"
        words_of = [sys.executable, "-m", "pytest", "-q", "-p", "ci.told", "--collect-only", "-m", mark, *files]
        ended = command.run(words_of, limit_s=COLLECT_S, env={FILE: str(told)}, log=log)
        if ended.code != 0:
            print(log.read_text()[-5000:], flush=True)
        return parts.modules(sorted(read(told).listed))


def tell(result: Result) -> None:
    """Print the end of a run, and write it to a file."""
    write(result, ROOT / OUT)
    print("\n" + "\n".join(lines(result)), flush=True)


def head() -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def hardware() -> str:
    """For comparing durations."""
    return f"{os.cpu_count()} CPU cores ({platform.machine()})"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGINT raise `Interrupted` inside; what runs then is ended with all that it started."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
