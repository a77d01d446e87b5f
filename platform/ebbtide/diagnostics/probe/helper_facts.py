"""The node's helper, asked for its own word: only it freezes processes and runs CRIU, so what it can do counts."""

from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.helper.client import Helper
from ebbtide.helper.errors import HelperError
from ebbtide.snapshot.driver.port import Capabilities
from ebbtide.snapshot.tiers import Means


@dataclass(frozen=True, slots=True)
class HelperSaid:
    """What it said: of the CUDA driver, and of CRIU (its version, or why not); None: no helper answered."""

    driver: Capabilities | None = None
    criu: str = ""
    why_not_criu: str = ""


def ask_helper(path: str) -> tuple[HelperSaid, Fact]:
    """Ask the helper that listens at ``path``; where none does, that is in the way of all that only it may do."""
    try:
        found = Helper(Path(path)).facts()
        said = HelperSaid(Capabilities(**found["driver"]), str(found["criu"]), str(found["why_not_criu"]))
    except (HelperError, KeyError, TypeError) as error:
        what = f"no helper answers at {path}, and nobody else may freeze processes or make images ({error})"
        remedy = f"start one on the node, with its privileges: python -m ebbtide.helper --socket {path}"
        return HelperSaid(), Fact("helper", what, path, None, hindering(Means.DRIVER, Means.CRIU), remedy)
    return said, Fact("helper", f"a helper answers at {path}", path, path)
