"""What a `FakeDriver` is told to do wrong: a JSON list of rules in a file of its own."""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from ebbtide.snapshot.driver.process_states import Call


class Do(Enum):
    """What happens instead of, or after, what was asked."""

    TIMEOUT = "timeout"  # LockTimeout
    REFUSE = "refuse"  # DriverRefused
    UNKNOWN = "unknown"  # DriverUnknown
    FAIL = "fail"  # the process is FAILED from now on
    DIE = "die"  # SIGKILL to whoever called: nothing of it runs any more
    HANG = "hang"  # it takes ``seconds`` longer


class When(Enum):
    """On which side of the change of state."""

    BEFORE = "before"
    AFTER = "after"


READ = "state"
"""The name by which a rule means `Driver.state`, which is no `Call`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that goes wrong.

    Attributes:
        call: the value of a `Call`, or `READ`.
        do: what happens.
        when: before or after the state has changed.
        pid: only for this process; None: for any.
        skip: let so many calls that fit pass first.
        times: how often it happens; whoever made the calls, also over deaths.
        seconds: how long `Do.HANG` takes.
    """

    call: str
    do: Do
    when: When = When.BEFORE
    pid: int | None = None
    skip: int = 0
    times: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.call not in {READ, *(call.value for call in Call)}:
            raise ValueError(f"a rule names the call {self.call!r}, which no driver has")
        if self.when is When.AFTER and self.do in (Do.TIMEOUT, Do.REFUSE):
            raise ValueError(f"{self.do.value} means that nothing has changed: it cannot come after the change")
        if self.do is Do.TIMEOUT and self.call != Call.LOCK.value:
            raise ValueError("only a lock has a timeout")


def write_script(path: Path, rules: list[Rule]) -> None:
    """Write rules where a `FakeDriver` reads them: ``script_of(state_file)``."""
    plain = [{**asdict(rule), "do": rule.do.value, "when": rule.when.value} for rule in rules]
    path.write_text(json.dumps(plain, indent=1), encoding="utf-8")


def read_script(path: Path) -> list[Rule]:
    """The rules in ``path``; none if there is no such file.

    Raises:
        ValueError: it is no list of rules.
    """
    if not path.exists():
        return []
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return [Rule(**{**rule, "do": Do(rule["do"]), "when": When(rule.get("when", "before"))}) for rule in plain]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no script for a fake driver: {error}") from error


def script_of(state_file: Path) -> Path:
    """Where the script for a fake driver with this state file lies."""
    return state_file.with_name(state_file.name + ".script")
