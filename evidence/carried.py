"""Statements that two versions of the code do the same, so that what was measured of the one stands for the other.

For commits that move and rename. ``evidence/carried.json`` has them: which commits, why, how it was proven, and the
digests before and after. Nothing else makes a row of earlier code fresh.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evidence.result_file import write

ROOT = Path(__file__).parents[1]
PATH = Path(__file__).with_name("carried.json")
ROOMS = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart")


@dataclass(frozen=True, slots=True)
class Statement:
    """The code of ``before`` does what that of ``after`` does; ``digests`` of the one, each with that of the other."""

    before: str
    after: str
    date: str
    why: str
    proof: str
    digests: dict[str, str]


def statements(path: Path = PATH) -> list[Statement]:
    """All, oldest first."""
    return [Statement(**one) for one in json.loads(path.read_text())] if path.exists() else []


def same(path: Path = PATH) -> dict[str, str]:
    """Digests of earlier code, each with the one that was stated to do the same; a later statement counts more."""
    return {old: new for one in statements(path) for old, new in one.digests.items() if old != new}


def state(
    before: str, after: str, why: str, proof: str, kinds: Iterable[Sequence[str]], *, root: Path = ROOT
) -> Statement:
    """A statement about all of ``kinds``, sets of processes; its digests are computed from both commits' sources.

    Raises:
        subprocess.CalledProcessError: there is no such commit, or its sources cannot be read.
    """
    wanted = sorted({tuple(sorted(one)) for one in kinds})
    old, new = (digests_at(commit, wanted, root=root) for commit in (before, after))
    pairs = {was: now for was, now in zip(old, new, strict=True) if was and now and was != now}
    return Statement(before, after, time.strftime("%Y-%m-%d"), why, proof, pairs)


def record(statement: Statement, path: Path = PATH) -> None:
    """Add it to the file."""
    write([asdict(one) for one in [*statements(path), statement]], path)


def digests_at(commit: str, kinds: Sequence[Sequence[str]], *, root: Path = ROOT) -> list[str]:
    """The digests of a commit's code, in the order of ``kinds``; "" where its processes were not known yet."""
    with tempfile.TemporaryDirectory(prefix="carried-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=root, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        rooms = [str(Path(folder) / room) for room in ROOMS]
        done = subprocess.run(
            [sys.executable, "-m", "evidence", "digests"],
            input=json.dumps(kinds),
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join([folder, *rooms])},
            capture_output=True,
            text=True,
            check=True,
        )
        found: list[str] = json.loads(done.stdout)
        return found
