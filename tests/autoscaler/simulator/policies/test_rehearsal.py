"""Perfect foresight learns from its own moves: what takes long is ordered early, and nobody is better."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ebbtide.pool.events import Decision
from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.policies import rehearsal
from ebbtide_simulator.policies.contenders import ALL_SERVING, CONTENDERS, ORACLE, OURS, STATIC, TURNED, knobs_of
from ebbtide_simulator.policies.contradictions import AS_WELL, contradictions
from ebbtide_simulator.policies.foresight import DIP_S, fewest_constant, lead_s, nothing_learnt, plan
from ebbtide_simulator.policies.lessons import lesson
from ebbtide_simulator.policies.rehearsal import GOOD, Foreseeing, Rehearsed, best
from ebbtide_simulator.run.bound import training_bound_s
from ebbtide_simulator.run.run import Outcome, Run, Scene, Service, endpoint_spec
from ebbtide_simulator.run.score import figures
from ebbtide_simulator.traffic.draws import Job
from ebbtide_simulator.traffic.traces import Array
from tests.autoscaler.simulator.small_scenes import ENGINE, HOUR_S, jobs_of, load_of, scene_of
from tests.builders.simulate import played

SEEDS = range(4)
EIGHT = jobs_of(16, every_s=0.0, workers=1, hours=4.0)  # the pool is full of them whenever it may


def steps(seed: int, warm_replicas: int) -> Scene:
    """From one replica to six within a second, back, and up again; a start takes 45 s or, on a new node, 150 s."""
    random = np.random.default_rng(seed)
    busy = ENGINE.full * 5.5
    work_s = np.concatenate([np.full(1500, 0.2), np.full(900, busy), np.full(1500, 0.2), np.full(900, busy)])
    scene = scene_of(load_of(random.gamma(20.0, work_s / 20.0)), EIGHT, seed=seed)
    [one] = scene.services
    services = (replace(one, spec=replace(one.spec, warm_replicas=warm_replicas)),)
    return replace(scene, tick_s=5.0, warm_up_s=900.0, services=services)


def flapping(seed: int) -> Scene:
    """Up and down every two minutes for an hour and a half: a job may be asked to leave six times an hour."""
    random = np.random.default_rng(seed)
    wave = np.tile(np.repeat([0.4, ENGINE.full * 5.5], 120), 22)
    scene = scene_of(load_of(random.gamma(20.0, wave / 20.0)), EIGHT, seed=seed)
    return replace(scene, tick_s=5.0, warm_up_s=960.0)


def shown(scene: Scene, name: str) -> dict[str, float]:
    found = figures(scene, played(scene, name))
    return found | {"bound_gpu_s": training_bound_s(scene)}


@cache
def of_steps(seed: int, warm_replicas: int, name: str) -> dict[str, float]:
    return shown(steps(seed, warm_replicas), name)


@pytest.mark.parametrize("warm_replicas", [0, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_it_serves_as_well_as_a_pool_that_only_serves_whatever_starts_take(seed: int, warm_replicas: int) -> None:
    foreseen, serving = (of_steps(seed, warm_replicas, name) for name in (ORACLE, ALL_SERVING))
    assert foreseen["slo_attainment"] >= serving["slo_attainment"] - AS_WELL
    assert foreseen["goodput_gpu_s"] > serving["goodput_gpu_s"] + 2 * HOUR_S


def test_without_a_rehearsal_starts_come_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = [1.0 - of_steps(seed, 0, ORACLE)["slo_attainment"] for seed in SEEDS]
    monkeypatch.setattr(rehearsal, "best", lambda played: played[0])
    late = [1.0 - figures(steps(seed, 0), played(steps(seed, 0), ORACLE))["slo_attainment"] for seed in SEEDS]
    assert all(one <= other for one, other in zip(rehearsed, late, strict=True))
    assert sum(late) > 10 * sum(rehearsed)
    assert max(late) > 0.01


def test_where_no_plan_serves_that_moves_replicas_it_tries_to_leave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """For which there is less training."""
    scene = steps(0, 8)
    monkeypatch.setattr(rehearsal, "plan", lambda *_: np.ones(len(scene.services[0].load.work_s) // 10))
    found, *others = rehearsal.rehearse(scene, PolicyConfig())
    assert found.late_share <= GOOD and all(one.late_share > 0.01 for one in others)
    assert found.outcome.slot_s[Use.TRAINING] < max(one.outcome.slot_s[Use.TRAINING] for one in others)


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_better_than_foresight_where_starts_take_long(seed: int) -> None:
    runs = {name: {seed: of_steps(seed, 0, name)} for name in (OURS, "ebbtide-reactive", "lyra", STATIC, ORACLE)}
    assert contradictions(runs, ORACLE) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_it_keeps_what_could_not_be_had_again_within_the_hour(seed: int) -> None:
    scene = flapping(seed)
    runs = {name: {seed: shown(scene, name)} for name in (OURS, "ebbtide-reactive", ALL_SERVING, ORACLE)}
    foreseen = runs[ORACLE][seed]
    assert foreseen["slo_attainment"] >= runs[ALL_SERVING][seed]["slo_attainment"] - AS_WELL
    assert foreseen["goodput_gpu_s"] > runs[ALL_SERVING][seed]["goodput_gpu_s"]
    assert foreseen["preemptions_per_job_h_max"] <= 6
    assert contradictions(runs, ORACLE) == []


@pytest.mark.parametrize(("held", "aims"), [(0, 3), (60, 3), (80, 4)])
def test_more_than_planned_come_only_where_more_waits_than_those_do_in_time(held: int, aims: int) -> None:
    """Three replicas of 16 at a time, each for 1.5 s: within the two seconds promised they answer 64."""
    seen = list[Snapshot]()

    def noting(now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig) -> tuple[Decision, Memory]:
        seen.append(snapshot)
        return decide(now_s, snapshot, memory, config)

    scene = scene_of(load_of(np.full(HOUR_S, 0.2)))
    Run(scene, noting, PolicyConfig()).to(900.0)
    [(name, traffic)] = seen[-1].traffic.items()
    crowded = replace(
        seen[-1], traffic={name: replace(traffic, held=held, stay_s=1.5, inflight=48, arriving_per_s=32.0)}
    )
    foreseeing = Foreseeing(scene.begins_s, {name: np.full(HOUR_S, 3.0)})
    memory = Memory()
    for second in range(5):
        _, memory = foreseeing(scene.begins_s + 900.0 + second, crowded, memory, PolicyConfig())
    assert memory.endpoints[name].aim == aims


def test_what_waits_for_too_long_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes 150 s where 45 were planned: the rest of what waits is more than a plan for what comes can do."""
    monkeypatch.setattr(rehearsal, "best", lambda played: played[0])
    late = {}
    for falls_behind in (True, False):
        if not falls_behind:
            monkeypatch.setattr(rehearsal, "_behind", lambda *_: False)
        scene = steps(0, 0)
        late[falls_behind] = 1.0 - figures(scene, played(scene, ORACLE))["slo_attainment"]
    assert late[True] < late[False]


def plans_played(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[set[float]]:
    """The replicas of each plan."""
    found = list[set[float]]()

    def noted(played: list[Rehearsed]) -> Rehearsed:
        found.extend({float(count) for plan in one.plans.values() for count in plan} for one in played)
        return best(played)

    with monkeypatch.context() as patch:
        patch.setattr(rehearsal, "best", noted)
        TURNED[ORACLE](scene, PolicyConfig(), knobs_of(ORACLE))
    return found


def test_not_to_move_is_a_plan_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plans_played(flapping(0), monkeypatch)[-1] == {6.0}


def test_not_where_moving_trains_more_than_that_leaves_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(len(levels) > 1 for levels in plans_played(steps(0, 8), monkeypatch))


def of_two(nodes: int = 2) -> Scene:
    """One of four GPUs that hardly ever needs two replicas, beside one of many requests: to jobs that is a lot."""
    rare = np.full(HOUR_S, ENGINE.full * 0.5)
    rare[2400:2430] = ENGINE.full * 1.8
    large = replace(ENGINE, slots=4)
    busy, seldom = load_of(np.full(HOUR_S, ENGINE.full * 2.5)), load_of(rare)
    seldom = replace(seldom, requests=seldom.requests / 40)  # it has longer ones
    scene = scene_of(busy, jobs_of(60, every_s=0.0, workers=1, hours=1.0), nodes=nodes, per_node=8)
    services = (*scene.services, Service(endpoint_spec("large", large, seldom, replicas_max=2), large, seldom))
    return replace(scene, services=services, warm_up_s=900.0, tick_s=5.0)


def beaten(scene: Scene) -> list[str]:
    """Where a partition for all but five per cent of the time beats foresight and its other plans."""
    static, oracle = (CONTENDERS[name](scene, PolicyConfig()) for name in ("static-p95", ORACLE))
    assert oracle.outcome is not None
    rival = Run(static.scene, static.contender, static.config).outcome()
    bound = {"bound_gpu_s": training_bound_s(scene)}
    runs = {"static-p95": {0: figures(scene, rival) | bound}, ORACLE: {0: figures(scene, oracle.outcome) | bound}}
    assert contradictions(runs, ORACLE) or oracle.others, "the test needs a scene in which another plan counts"
    return contradictions(runs, ORACLE, {0: [figures(scene, one) for one in oracle.others]})


def test_in_a_small_pool_it_could_also_serve_a_little_less(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beaten(of_two()) == []
    monkeypatch.setattr(rehearsal, "leaner", lambda services, plans, late_share, from_s: plans)
    [told] = beaten(of_two())
    assert told.startswith("static-p95, seed 0: ")


def test_where_one_replica_is_less_than_luck_it_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()

    def noted(services: object, plans: Mapping[EndpointName, Array], late_share: float, from_s: int) -> object:
        asked.append(late_share)
        return plans

    monkeypatch.setattr(rehearsal, "leaner", noted)
    TURNED[ORACLE](of_two(nodes=50), PolicyConfig(), knobs_of(ORACLE))
    assert asked == []
    TURNED[ORACLE](of_two(nodes=49), PolicyConfig(), knobs_of(ORACLE))
    assert len(asked) == 2 * len(rehearsal.LATE)


def test_as_few_as_do_without_a_move() -> None:
    load = load_of(np.concatenate([np.full(HOUR_S, ENGINE.full * 3.5), np.full(60, ENGINE.full * 5.5)]))
    assert fewest_constant(load, ENGINE, 1.0, 0.0, 8) == 6
    assert fewest_constant(load, ENGINE, 1.0, 0.0, 5) == 5
    assert fewest_constant(load, ENGINE, 1.0, 0.05, 8) == 4


def test_what_counts_is_what_comes_of_its_plan() -> None:
    scene = steps(0, 0)
    play = CONTENDERS[ORACLE](scene, PolicyConfig())
    assert play.outcome is not None
    again = Run(play.scene, play.contender, play.config).outcome()
    assert figures(scene, play.outcome) == figures(scene, again)
    assert play.outcome.waits == ()


def test_where_all_come_in_time_it_plays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = replace(scene_of(load_of(np.full(HOUR_S, 0.3)), (Job(0.0, 2, 2, 1e5),)), warm_up_s=900.0)
    runs = list[Scene]()

    class Counted(Run):
        def __init__(self, scene: Scene, *rest: object) -> None:
            runs.append(scene)
            super().__init__(scene, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsal, "Run", Counted)
    TURNED[ORACLE](calm, PolicyConfig(), knobs_of(ORACLE))
    assert len(runs) == 1


def a_run(late: float, trained_s: float) -> Rehearsed:
    outcome = played(scene_of(load_of(np.full(10, 0.1))), ALL_SERVING)
    found: Outcome = replace(
        outcome,
        late=np.array([1e6 * late]),
        requests=np.array([1e6]),
        slot_s={**outcome.slot_s, Use.TRAINING: trained_s},
    )
    return Rehearsed({}, found)


@pytest.mark.parametrize(
    ("runs", "which"),
    [
        ([(0.03, 100.0), (0.01, 80.0)], 1),  # it serves better
        ([(GOOD, 100.0), (0.0, 80.0)], 0),  # both are good
        ([(0.0101, 100.0), (0.01, 80.0)], 0),  # as well
        ([(0.0, 80.0), (GOOD, 100.0), (0.01, 120.0)], 1),
        ([(0.01, 80.0), (0.01, 80.0)], 0),
    ],
)
def test_the_most_training_among_those_that_serve_as_well_as_any(runs: list[tuple[float, float]], which: int) -> None:
    shown = [a_run(*one) for one in runs]
    assert best(shown) is shown[which]


def test_it_learns_to_order_earlier_then_not_to_use_dips_of_the_hour_before() -> None:
    scene = steps(0, 0)
    [one] = scene.services
    ready, waited_s = np.full(480, 8.0), np.zeros(4800 - 900)
    ready[400:403], waited_s[4005 - 900] = 1.0, 30.0
    waits = waited_s, np.ones(len(waited_s))
    once = lesson(scene, one, nothing_learnt(one.load), ready, waits)
    assert np.flatnonzero(once.earlier_s).tolist() == [400, 401, 402]
    assert once.earlier_s[400] == 3 * 10 + scene.tick_s
    assert (once.dip_s == DIP_S).all() and not once.more.any()
    twice = lesson(scene, one, once, ready, waits)
    assert twice.earlier_s[400] == 2 * once.earlier_s[400] + 3 * 10 + scene.tick_s
    assert np.flatnonzero(twice.dip_s == 2 * DIP_S).tolist() == list(range(40, 403))
    ready[:] = 8.0
    more = lesson(scene, one, nothing_learnt(one.load), ready, waits)
    assert np.flatnonzero(more.more).tolist() == [400] and not more.earlier_s.any()


def test_before_the_beginning_nothing_can_be_ordered_so_more_start_at_once() -> None:
    scene = replace(steps(0, 0), warm_up_s=0.0)
    [one] = scene.services
    ready, waited_s = np.full(480, 8.0), np.zeros(4800)
    ready[:5], waited_s[20] = 0.0, 30.0
    waits = waited_s, np.ones(len(waited_s))
    learnt = nothing_learnt(one.load)
    for more in (1.0, 2.0, 4.0):
        learnt = lesson(scene, one, learnt, ready, waits)
        assert learnt.more[:6].tolist() == [more] * 5 + [0.0]


def test_single_requests_are_played_after_a_rehearsal_with_a_fluid() -> None:
    scene = replace(steps(0, 0), singly=True)
    play = CONTENDERS[ORACLE](scene, PolicyConfig())
    assert play.outcome is None
    assert Run(play.scene, play.contender, play.config).outcome().requests.sum() > 1000


def test_what_was_learnt_is_ordered_earlier_and_only_that() -> None:
    load = load_of(np.array([0.3] * 600 + [3.0] * 100 + [0.3] * 600 + [3.0] * 100))
    learnt = nothing_learnt(load)
    learnt.earlier_s[60:70] = 90.0
    usual, now = (plan(load, ENGINE, 2.0, 15.0, known) for known in (None, learnt))
    assert (now >= usual).all()
    usually = int(np.flatnonzero(usual == usual.max())[0])
    assert np.flatnonzero(now > usual).tolist() == list(range(60 - 11, usually)), "105 s before, by tens"
    more = plan(load, ENGINE, 2.0, 15.0, replace(nothing_learnt(load), more=learnt.earlier_s / 90.0))
    assert (more - usual)[60:70].tolist() == [1.0] * 10


def test_dips_are_left_unused_only_where_that_was_learnt() -> None:
    load = load_of(np.array(([3.0] * 100 + [0.3] * 200) * 4 + [3.0] * 100))
    learnt = nothing_learnt(load)
    learnt.dip_s[:60] = 400.0
    usual, now = (plan(load, ENGINE, 2.0, 15.0, known) for known in (None, learnt))
    assert (now[:60] == now[:10].max()).all()
    assert now[60:].tolist() == usual[60:].tolist()
    assert usual[:60].min() < now[:60].min()


@pytest.mark.parametrize(("tick_s", "least_s"), [(1.0, 1 + 3 + 3), (5.0, 5 + 5 + 3), (60.0, 60 + 60 + 3)])
def test_a_wake_takes_two_decisions_where_a_job_has_to_leave_first(tick_s: float, least_s: float) -> None:
    assert lead_s(steps(0, 0).times, tick_s) == least_s
