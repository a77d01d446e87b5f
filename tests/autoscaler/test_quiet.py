"""A decision that is not made again is the one that would have been made."""

from typing import Any

import pytest

from ebbtide.pool.events import Decision
from ebbtide_autoscaler import policy, step
from ebbtide_autoscaler.quiet import NEVER
from ebbtide_autoscaler.signals import Memory, PolicyConfig, Snapshot
from tests.autoscaler.chaos import Chaos
from tests.autoscaler.test_closed_loop import training

decide = policy.decide


class Twice:
    """Decides as the product does, and again without what was remembered."""

    def __init__(self) -> None:
        self.calls = self.remembered = 0

    def __call__(self, now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig) -> Any:
        before = policy._last_quiet[0]
        found = decide(now_s, snapshot, memory, config)
        after = policy._last_quiet[0]
        policy._last_quiet[0] = NEVER
        anew = decide(now_s, snapshot, memory, config)
        policy._last_quiet[0] = after
        assert self._said(found) == self._said(anew)
        self.calls += 1
        self.remembered += before is after and found[0].waits is before.waits
        return found

    def _said(self, found: tuple[Decision, Memory]) -> object:
        """Words may be a few seconds old; who waits may not."""
        decision, memory = found
        return decision.moves, {name for name, _ in decision.waits}, memory


@pytest.mark.parametrize("seed", range(10))
def test_through_all_kinds_of_bad_luck(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = Twice()
    monkeypatch.setattr(step, "decide", twice)
    Chaos(seed).run(60.0)
    assert twice.calls > 500


def test_most_decisions_of_a_pool_at_rest_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = training()
    loop.run(60.0)
    twice = Twice()
    monkeypatch.setattr(step, "decide", twice)
    loop.run(60.0)
    assert twice.remembered > 0.5 * twice.calls
