"""How long parts and hunts usually take: ``ci/usual.json``, which ``python -m ci remember`` writes from a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATH = Path(__file__).with_name("usual.json")
DIGITS = 1
LEAST_S = 2.0  # files that take less are not kept: the order of those does not matter


@dataclass(frozen=True, slots=True)
class Usual:
    """Durations in seconds on a quiet machine, by name; ``hardware`` says on which."""

    hardware: str = ""
    parts_s: dict[str, float] = field(default_factory=dict)
    modules_s: dict[str, float] = field(default_factory=dict)
    hunts_s: dict[str, float] = field(default_factory=dict)
    files_s: dict[str, float] = field(default_factory=dict)  # of tests without a cluster, those that count


def load(path: Path = PATH) -> Usual:
    """What is on record; nothing, if there is no file."""
    return Usual(**json.loads(path.read_text())) if path.exists() else Usual()


def save(usual: Usual, path: Path = PATH) -> None:
    """Replace the record."""
    text = {
        "hardware": usual.hardware,
        "parts_s": _rounded(usual.parts_s),
        "modules_s": _rounded(usual.modules_s),
        "hunts_s": _rounded(usual.hunts_s),
        "files_s": _rounded({name: s for name, s in usual.files_s.items() if s >= LEAST_S}),
    }
    path.write_text(json.dumps(text, indent=1) + "\n")


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds[name], DIGITS) for name in sorted(seconds)}
