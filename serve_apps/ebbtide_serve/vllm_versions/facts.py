"""The names that each version of vLLM has, from the files that ``collect`` wrote. Imports nothing of vLLM."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "facts"


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one version.

    Attributes:
        version: of which they are, in full.
        paths: name -> ``module:name`` of what moved between versions.
        engine_args: name -> type of the arguments of the engine.
        frontend_args: name -> type of the arguments of vLLM's HTTP server.
        requests: ``module:class`` -> name -> type of the fields of each class of requests.
    """

    version: str
    paths: Mapping[str, str]
    engine_args: Mapping[str, str]
    frontend_args: Mapping[str, str]
    requests: Mapping[str, Mapping[str, str]]


def file_of(number: tuple[int, int], folder: Path = FOLDER) -> Path:
    """Where the facts of a version are, by its major and minor number."""
    return folder / f"{number[0]}.{number[1]}.json"


def facts_of(number: tuple[int, int], folder: Path = FOLDER) -> Facts | None:
    """The facts of a version; None if there are none."""
    path = file_of(number, folder)
    if not path.exists():
        return None
    whole = json.loads(path.read_text())
    return Facts(whole["version"], whole["paths"], whole["engine_args"], whole["frontend_args"], whole["requests"])
