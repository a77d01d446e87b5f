"""The names that each version of vLLM has, from the files that ``collect`` wrote. Imports nothing of vLLM."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "facts"
CUT = "..."  # the end of a text that was not kept whole


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one version.

    Attributes:
        version: of which they are, in full.
        paths: name -> ``module:name`` of what moved between versions.
        engine_args: name -> type of the arguments of the engine.
        frontend_args: name -> type of the arguments of vLLM's HTTP server.
        requests: ``module:class`` -> name -> type of the fields of each class of requests.
        none_by_default: arguments of the engine that are None unless they are set, whatever their type; None: not kept.
        bounds: name of an argument -> ``ge``, ``gt``, ``le``, ``lt`` -> number.
        config_classes: name of a class that an argument may be given as a mapping -> name -> type of its fields.

    What files of an earlier form do not have is None or empty; types in them may be cut short (`CUT`).
    """

    version: str
    paths: Mapping[str, str]
    engine_args: Mapping[str, str]
    frontend_args: Mapping[str, str]
    requests: Mapping[str, Mapping[str, str]]
    none_by_default: frozenset[str] | None = None
    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    config_classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def file_of(number: tuple[int, int], folder: Path = FOLDER) -> Path:
    """Where the facts of a version are, by its major and minor number."""
    return folder / f"{number[0]}.{number[1]}.json"


def facts_of(number: tuple[int, int], folder: Path = FOLDER) -> Facts | None:
    """The facts of a version; None if there are none.

    Raises:
        ValueError: the file is broken.
    """
    path = file_of(number, folder)
    if not path.exists():
        return None
    try:
        whole = json.loads(path.read_text())
        no_value = whole.get("none_by_default")
        return Facts(
            whole["version"],
            whole["paths"],
            whole["engine_args"],
            whole["frontend_args"],
            whole["requests"],
            None if no_value is None else frozenset(no_value),
            whole.get("bounds", {}),
            whole.get("config_classes", {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no facts: {error!r}") from error
