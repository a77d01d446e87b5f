"""How long parts and hunts usually take: ``ci/usual.json``, which ``python -m ci remember`` writes from a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PATH = Path(__file__).with_name("usual.json")
DIGITS = 1


@dataclass(frozen=True, slots=True)
class Usual:
    """Durations in seconds on a quiet machine, by name; ``hardware`` says on which."""

    hardware: str = ""
    parts_s: dict[str, float] = field(default_factory=dict)
    modules_s: dict[str, float] = field(default_factory=dict)
    hunts_s: dict[str, float] = field(default_factory=dict)


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
    }
    path.write_text(json.dumps(text, indent=1) + "\n")


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds[name], DIGITS) for name in sorted(seconds)}
