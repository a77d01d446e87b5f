"""Idle reclaim decides by what was used: warned first, called off by any use, never put aside while it is used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_train.interactive.idle_detection.idle_rules import Action, IdleRules, Memory, Use, look, note_told

RULES = IdleRules(idle_after_s=100.0, warn_before_s=20.0)


def run(rules: IdleRules, uses: list[Use], *, told: bool = True) -> list[Action]:
    memory, actions = Memory(), []
    for use in uses:
        memory, action = look(rules, memory, use)
        if told and action is Action.WARN:
            memory = note_told(memory)
        actions.append(action)
    return actions


def quiet(until_s: float, *, every_s: float = 1.0) -> list[Use]:
    return [Use(at_s=n * every_s, cpu_s=1.0) for n in range(int(until_s / every_s) + 1)]


def test_it_is_warned_in_time_then_put_aside() -> None:
    actions = run(RULES, quiet(101))
    assert [(n, a) for n, a in enumerate(actions) if a is not Action.NOTHING] == [
        (80, Action.WARN),
        (100, Action.PUT_ASIDE),
        (101, Action.PUT_ASIDE),
    ]


def test_an_owner_who_cannot_be_told_gets_as_much_time_again() -> None:
    actions = run(RULES, quiet(125), told=False)
    assert actions.index(Action.WARN) == 80
    assert actions.index(Action.PUT_ASIDE) == 120


@pytest.mark.parametrize(
    "use",
    [
        Use(at_s=90.0, cpu_s=1.6),
        Use(at_s=90.0, cpu_s=1.0, gpu=0.5),
        Use(at_s=90.0, cpu_s=1.0, touched_s=7.0),
    ],
    ids=["cpu", "gpu", "touch"],
)
def test_any_use_calls_a_warning_off(use: Use) -> None:
    later = [Use(at_s=91.0 + n, cpu_s=use.cpu_s, touched_s=use.touched_s) for n in range(78)]
    actions = run(RULES, [*quiet(89), use, *later])
    assert actions[80] is Action.WARN and actions[90] is Action.CALL_OFF
    assert Action.PUT_ASIDE not in actions and Action.WARN not in actions[91:]


def test_without_a_time_nothing_is_ever_put_aside() -> None:
    assert set(run(IdleRules(), quiet(10_000, every_s=100))) == {Action.NOTHING}


def test_a_warning_that_would_come_before_the_idling_is_refused() -> None:
    with pytest.raises(ValueError, match="must be below idle_after_s"):
        IdleRules(idle_after_s=10.0, warn_before_s=10.0)


USES = st.lists(
    st.tuples(
        st.floats(0.1, 30.0),  # seconds since the last look
        st.one_of(st.just(0.0), st.just(0.0), st.floats(0.0, 2.0)),  # CPU seconds since
        st.sampled_from([None, 0.0, 0.0, 0.9]),
        st.sampled_from([0, 0, 0, 0, 0, 1]),  # touched since
        st.booleans(),  # the herald delivers
    ),
    max_size=80,
)


@given(USES)
def test_nobody_is_put_aside_unwarned_or_in_use(steps: list[tuple[float, float, float | None, int, bool]]) -> None:
    memory = Memory()
    at_s = cpu_s = touched_s = 0.0
    quiet_since_s = at_s
    warned_s: float | None = None
    for dt_s, cpu, gpu, touch, delivered in steps:
        at_s, cpu_s, touched_s = at_s + dt_s, cpu_s + cpu, touched_s + touch
        first = memory.last is None
        active = first or cpu > RULES.cpu_quiet * dt_s + 1e-9 or (gpu or 0.0) > RULES.gpu_quiet or touch > 0
        memory, action = look(RULES, memory, Use(at_s=at_s, cpu_s=cpu_s, gpu=gpu, touched_s=touched_s))
        if active:
            assert action is (Action.CALL_OFF if warned_s is not None else Action.NOTHING)
            quiet_since_s, warned_s = at_s, None
        elif action is Action.WARN:
            warned_s = at_s if warned_s is None else warned_s
            memory = note_told(memory) if delivered else memory
        elif action is Action.PUT_ASIDE:
            assert RULES.idle_after_s is not None and warned_s is not None
            if at_s - quiet_since_s < RULES.idle_after_s - 1e-6:  # rounding of one sum
                raise AssertionError(f"put aside after {at_s - quiet_since_s} s")
