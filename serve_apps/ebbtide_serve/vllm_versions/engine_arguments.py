"""What is wrong with the engine arguments of an endpoint, by the facts of one version of vLLM."""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ebbtide.config.finding import Finding, Loc
from ebbtide.config.suggestions import did_you_mean
from ebbtide_serve.vllm_versions.argument_types import choices, expected, named, number_meant, takes
from ebbtide_serve.vllm_versions.facts import Facts

BECOMES = {"speculative_config": "SpeculativeConfig"}
"""Arguments that are typed as a mapping and of which vLLM makes one of its configuration classes."""
BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("more than", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("less than", operator.lt),
}
SHOWN = 60  # characters of a value


def argument_findings(
    facts: Facts, arguments: Mapping[str, object], loc: Loc, *, others: Callable[[], Sequence[Facts]] = tuple
) -> Iterator[Finding]:
    """Every argument that this version does not have, or not with such a value.

    Args:
        facts: of the version.
        arguments: name -> value.
        loc: of the section that holds them.
        others: the facts of all versions, asked for only where an argument is unknown.
    """
    for name, value in arguments.items():
        text = facts.engine_args.get(name)
        if text is None:
            yield _unknown(facts, name, (*loc, name), others)
        elif value is None and (facts.none_by_default is None or name in facts.none_by_default):
            continue  # as if it were left out; or nothing is known of that
        else:
            yield from _value(facts, name, text, value, (*loc, name))


def _unknown(facts: Facts, name: str, loc: Loc, others: Callable[[], Sequence[Facts]]) -> Finding:
    message = f"vLLM {facts.version} has no engine argument {name!r}"
    public = [known for known in facts.engine_args if not known.startswith("_")]
    having = [one.version for one in others() if name in one.engine_args]
    hint = did_you_mean(name, public)
    if having:
        hint = f"vLLM {', '.join(having)} have it" if len(having) > 1 else f"vLLM {having[0]} has it"
    elif name in facts.frontend_args:
        hint = "it is one of vLLM's HTTP server, in whose place the pool's gateway is"
    return Finding(loc, message, hint, at_key=True)


def _value(facts: Facts, name: str, text: str, value: object, loc: Loc) -> Iterator[Finding]:
    if not takes(text, value):
        yield Finding(loc, f"expected {expected(text)}, got {_shown(value)}", _meant(text, value))
        return
    for kind, bound in facts.bounds.get(name, {}).items():
        words, holds = BOUNDS[kind]
        number = _number(value)
        if number is not None and not holds(number, bound):
            yield Finding(loc, f"must be {words} {bound:g}, is {_shown(value)}")
            return
    fields = facts.config_classes.get(BECOMES.get(name, "") or _config_class(facts, text))
    if fields is not None and isinstance(value, dict):
        yield from _fields(fields, value, loc)


def _config_class(facts: Facts, text: str) -> str:
    """The configuration class that vLLM makes of a mapping given for this type; empty if there may be another use."""
    names = named(text)
    return "" if names & {"dict", "Any"} else next((name for name in names if name in facts.config_classes), "")


def _fields(fields: Mapping[str, str], value: Mapping[str, object], loc: Loc) -> Iterator[Finding]:
    for name, inner in value.items():
        if name not in fields:
            yield Finding((*loc, name), f"vLLM has no such field: {name!r}", _near(name, fields), at_key=True)
        elif inner is not None and not takes(fields[name], inner):
            text = fields[name]
            yield Finding((*loc, name), f"expected {expected(text)}, got {_shown(inner)}", _meant(text, inner))


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return did_you_mean(name, names) or f"known here: {', '.join(names)}"


def _meant(text: str, value: object) -> str | None:
    number = number_meant(value)
    if number is not None and takes(text, number):
        return f"write {number}: only vLLM's command line takes {value}"
    if value == "auto" and takes(text, 0):
        return "leave it out, so that vLLM chooses"
    if isinstance(value, str):
        return did_you_mean(value, choices(text))
    if isinstance(value, bool | int | float) and takes(text, str(value)):
        return "put it in quotes"
    return None


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf  # type: ignore[operator] # text does not overflow


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
