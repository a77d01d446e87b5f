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
from ci.part import Unit, run_part
from ci.progress import read
from ci.summary import Result, lines, write
from ci.told import FILE

ROOT = Path(__file__).parents[1]
OUT = Path("out") / "ci" / "summary.json"
LAST_WORDS_S = 20.0  # of the budget: to end what still runs, and to print
COLLECT_S = 240.0


class Interrupted(BaseException):
    """SIGTERM or Ctrl-C."""


class NoTests(RuntimeError):
    """Collecting found nothing: a module cannot be imported, or a mark has another name."""


def run(*, budget_min: float, began_s: float, tries: int, commit: str) -> Result:
    """All parts; ``began_s`` is when ``.ci/run`` began, in seconds since 1970."""
    result = Result(commit, budget_min, hardware(), time.time() - began_s)
    until_s = time.monotonic() + 60 * budget_min - result.set_up_s - LAST_WORDS_S
    with interrupted_into(result):
        for name, part in ((parts.CHECK, check), (parts.TEST, test), (parts.CLUSTERS, clusters)):
            part(result, limit_s=parts.limit_s(name, until_s - time.monotonic()), tries=tries)
        known = usual.load().parts_s
        result.slowness = hunts.slowness({part.name: part.took_s for part in result.parts}, known)
        hunt(result, limit_s=until_s - time.monotonic(), tries=tries)
    result.took_s = time.time() - began_s
    return result


def check(result: Result, *, limit_s: float, tries: int = 1) -> None:
    """Formats, lint, types, contracts, guards, layout; none is tried again."""
    part = result.begin(parts.CHECK)
    began_s = time.monotonic()
    for words in parts.checks(str(Path(sys.executable).parent)):
        name = " ".join([Path(words[0]).name, *words[1:]])
        print(f"ci: {name}", flush=True)
        part.outcomes[name] = "failed"
        ended = command.run(words, limit_s=began_s + limit_s - time.monotonic())
        part.outcomes[name] = "passed" if ended.code == 0 else "failed"
        part.units_s[name] = ended.seconds
        if ended.code is None:
            part.notes.append(f"{name} was cut off after {ended.seconds:.0f} s")
    part.took_s = time.monotonic() - began_s


def test(result: Result, *, limit_s: float, tries: int) -> None:
    """All tests without a cluster."""
    units = [(parts.without_cluster(), limit_s)]
    run_part(result.begin(parts.TEST), units, until_s=time.monotonic() + limit_s, tries=tries)


def clusters(result: Result, *, limit_s: float, tries: int) -> None:
    """Tests with a real Ray cluster, a process for each module."""
    part, until_s = result.begin(parts.CLUSTERS), time.monotonic() + limit_s
    try:
        found = collect(parts.WITH_CLUSTER, "mark.ray")
    except NoTests as error:
        part.troubles.append(str(error))
        return
    shared = [name for name in found if "mark.shares_cluster" in (ROOT / name).read_text()]
    units = parts.with_clusters(found, shared, parts.WITH_CLUSTER, usual.load().modules_s)
    run_part(part, units, until_s=until_s, tries=tries)


def hunt(result: Result, *, limit_s: float, tries: int) -> None:
    """Hunts, in the turn of this commit, as long as there is time."""
    part, until_s = result.begin(parts.HUNTS), time.monotonic() + limit_s
    usual_s = usual.load().hunts_s
    try:
        found = collect(hunts.MARKED, "mark.hunt", "hunts import", "turns import")
        found += [hunts.PROPERTIES + name for name in collect(hunts.OF_PROPERTIES, "hypothesis import")]
    except NoTests as error:
        part.troubles.append(str(error))
        return

    def that_fit() -> Iterator[tuple[Unit, float]]:
        for name in hunts.in_turn(result.commit, found):
            budget = hunts.Budget(until_s - time.monotonic(), result.slowness)
            takes_s = usual_s.get(name, hunts.UNKNOWN_S)
            if budget.allows(takes_s):
                yield hunts.unit(name), budget.limit_s(takes_s)
            else:
                result.not_begun.append(name)

    run_part(part, that_fit(), until_s=until_s, tries=tries)


def collect(mark: str, *words: str) -> list[str]:
    """The modules that have tests with ``mark``; only those are looked into that have one of ``words``.

    Raises:
        NoTests: there are none, or a module cannot be collected.
    """
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(word in path.read_text() for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="told-") as folder:
        told, log = Path(folder) / "told.jsonl", Path(folder) / "log"
        words_of = [sys.executable, "-m", "pytest", "-q", "-p", "ci.told", "--collect-only", "-m", mark, *files]
        ended = command.run(words_of, limit_s=COLLECT_S, env={FILE: str(told)}, log=log)
        found = parts.modules(sorted(read(told).listed))
        if ended.code != 0 or not found:
            print(log.read_text()[-5000:], flush=True)
            raise NoTests(f"collecting tests with the mark {mark!r} ended with exit code {ended.code} (why: above)")
    return found


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
def interrupted_into(result: Result) -> Iterator[None]:
    """SIGTERM and SIGINT end what runs, with all that it started, and are told in the result."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Interrupted:
        result.interrupted = True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
