"""Requests one by one: against a loop that plays every step, and against what must hold for any load."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.model import batching
from ebbtide_simulator.model.engine import Engine
from ebbtide_simulator.model.failures import Failure
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.run.run import Run, Service
from ebbtide_simulator.traffic.draws import Load, lengths, load
from ebbtide_simulator.traffic.queue import Queue
from ebbtide_simulator.traffic.requests import AT_ONCE, HELD_S, RequestQueue, at_full
from ebbtide_simulator.traffic.singles import Drawn
from ebbtide_simulator.traffic.traces import Rates, Requests
from tests.autoscaler.simulator.small_scenes import HOUR_S, jobs_of, scene_of
from tests.examples import examples
from tests.hunts import spread

ENGINE = Engine(prefill_tok_s=10_000, decode_tok_s=1_000, step_s=0.01, chunk_tokens=2_000, kv_tokens=4_000)
ROOMY = replace(ENGINE, kv_tokens=1e6)
ONE = st.tuples(st.floats(0.0, 5.0), st.integers(1, 1_500), st.integers(1, 100))
SLO_S, TPOT_S = 2.0, 0.1


def recorded(rows: list[tuple[float, int, int]], seconds: int = 0) -> Load:
    """These requests, and an empty one at second ``seconds``, so that the load lasts."""
    ordered = [(0.0, 1, 1), *sorted(rows), *([(float(seconds), 1, 1)] if seconds else [])]
    at_s, prompt, output = (np.array(one, dtype=np.float64) for one in zip(*ordered, strict=True))
    return load(Requests(at_s, prompt, output), ENGINE, 1.0, (1, 1), 0)


def queue_of(given_load: Load, engine: Engine = ENGINE, slo_s: float = SLO_S) -> RequestQueue:
    return RequestQueue(Drawn(given_load, engine, (0, 0)), slo_s, TPOT_S)


def answers(queue: RequestQueue) -> int:
    """That have ended so far."""
    return int(queue._state.counts[batching.DONE])


def fullest(queue: RequestQueue) -> tuple[float, int]:
    """Of the fullest replica: the tokens that it keeps, and the answers it writes."""
    replicas = queue._state.replicas
    one = int(np.argmax(replicas["kv"]))
    return float(replicas["kv"][one]), int(replicas["writing"][one])


def steady(per_s: float, seconds: int = 600) -> Load:
    flat = np.full(2, per_s)
    zero = np.zeros(2)
    trace = Rates(np.array([0.0, float(seconds - 60)]), flat, zero, np.full(2, 500.0), np.full(2, 50.0))
    return load(trace, ENGINE, 1.0, (1, 1), 1)


@dataclass
class Stepped:
    """One replica, played in steps so short that nothing happens within one; written without a look at the other."""

    waiting: list[int] = field(default_factory=list)
    unread: dict[int, float] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)

    def play(
        self, rows: list[tuple[float, int, int]], until_s: float, step_s: float
    ) -> tuple[list[float], list[float]]:
        first, ended = [np.inf] * len(rows), [np.inf] * len(rows)
        held: list[int] = []
        todo, now_s, kept = list(range(len(rows))), 0.0, 0.0
        while now_s < until_s:
            while todo and rows[todo[0]][0] <= now_s:
                held.append(todo.pop(0))
            if not (held or self.waiting or self.left):
                now_s += step_s  # there is nothing to do, in most of the steps
                continue
            while held and len(self.waiting) + len(self.left) < AT_ONCE:
                one = held.pop(0)
                self.waiting.append(one)
                self.unread[one] = float(rows[one][1])
            head = self.waiting[0] if self.waiting else None
            reads = head is not None and (not self.left or kept + sum(rows[head][1:]) <= ENGINE.kv_tokens)
            tokens = sum(rows[one][1] for one in self.waiting)
            chunk = min(max(ENGINE.chunk_tokens - len(self.left), 1.0), tokens) if reads else 0.0
            lasts_s = max(ENGINE.step_s, len(self.left) / ENGINE.decode_tok_s + chunk / ENGINE.prefill_tok_s)
            share = step_s / lasts_s
            for one in self.left:
                self.left[one] -= share
            now_s += step_s
            if reads and head is not None:
                self.unread[head] -= chunk * share
                if self.unread[head] <= 0:
                    self.waiting.pop(0)
                    first[head] = now_s
                    kept += sum(rows[head][1:])
                    self.left[head] = rows[head][2] - 1.0
            for one in [one for one, left in self.left.items() if left <= 0]:
                del self.left[one]
                ended[one] = now_s
                kept -= sum(rows[one][1:])
        return first, ended


@settings(max_examples=examples(20))
@given(st.lists(ONE, min_size=1, max_size=12))
def test_one_replica_does_what_a_loop_over_steps_does(rows: list[tuple[float, int, int]]) -> None:
    rows = [(0.0, 1, 1), *sorted(rows), (20.0, 1, 1)]
    first, ended = Stepped().play(rows, 21.0, 0.001)
    queue = queue_of(recorded(rows[1:-1], 20))
    queue.serve(21, 1)
    assert queue.stays_s() == pytest.approx(
        sum(end - came for end, (came, _, _) in zip(ended, rows, strict=True)), rel=0.01, abs=0.01 * len(rows)
    )
    expected_s = np.zeros(21)
    for token_s, (came_s, _, _) in zip(first, rows, strict=True):
        expected_s[int(came_s)] += token_s - came_s
    waits_s = queue.waits_s() * np.maximum(queue.arrivals.load.requests[:21], 1.0)
    np.testing.assert_allclose(waits_s, expected_s, rtol=0.01, atol=0.01 * len(rows))


@settings(max_examples=examples(40))
@given(
    rows=st.lists(ONE, min_size=1, max_size=60),
    replicas=st.lists(st.integers(0, 3), min_size=22, max_size=22),
    cuts=st.sets(st.integers(1, 21)),
)
def test_in_many_steps_it_comes_to_the_same_and_nobody_is_lost(
    rows: list[tuple[float, int, int]], replicas: list[int], cuts: set[int]
) -> None:
    given_load = recorded(rows, 21)
    queues = queue_of(given_load), queue_of(given_load)
    for second in range(22):
        queues[0].serve(second + 1, replicas[max(cut for cut in (*cuts, 0) if cut <= second)])
    ends = sorted({*cuts, 22})
    for begin, end in zip([0, *ends], ends, strict=False):
        queues[1].serve(end, replicas[begin])
    one, many = queues
    assert one.stays_s() == pytest.approx(many.stays_s())
    np.testing.assert_array_equal(one.late, many.late)
    np.testing.assert_allclose(one.waits_s(), many.waits_s())
    assert one.asked.sum() == given_load.requests.sum()
    told = one.at_work(0)
    assert answers(one) + told.held + told.inflight == given_load.requests.sum(), "answered, at work, or held"


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 3_000), st.integers(1, 1_500)), min_size=5, max_size=40))
def test_tokens_never_take_more_room_than_there_is(rows: list[tuple[float, int, int]]) -> None:
    queue = queue_of(recorded(rows, 60))
    for second in range(60):
        queue.serve(second + 1, 1)
        kept, writing = fullest(queue)
        assert kept <= ENGINE.kv_tokens or writing == 1, (
            "one alone may be larger than the cache: it is read all the same"
        )


def test_a_replica_has_only_so_many_and_the_gateway_holds_the_rest_and_gives_them_up() -> None:
    rows = [(0.5, 10, 10_000)] * (AT_ONCE + 5)  # of which 64 take 640 s
    queue = queue_of(recorded(rows, 200), ROOMY)
    queue.serve(10, 1)
    told = queue.at_work(1)
    assert (told.inflight, told.held) == (AT_ONCE, 5)
    queue.serve(int(HELD_S) + 2, 1)
    assert queue.at_work(1).held == 0
    assert queue.late.sum() == 5, "whoever was given up was not answered in time"


def test_all_are_late_without_a_replica_and_as_soon_as_they_are() -> None:
    queue = queue_of(recorded([(1.5, 10, 10)] * 3, 60))
    queue.serve(3, 0)
    assert queue.late.sum() == 1.0, "the first one, of second 0; the others wait for 1.5 s"
    queue.serve(5, 0)
    assert queue.late.sum() == 4.0
    queue.serve(60, 1)
    assert queue.late.sum() == 4.0, "none is counted twice"


def test_requests_of_a_replica_that_dies_fail_and_those_of_one_that_leaves_do_not() -> None:
    rows = [(1.0, 10, 500)] * 8
    leaves, dies = queue_of(recorded(rows, 60)), queue_of(recorded(rows, 60))
    for queue, died in ((leaves, 0), (dies, 1)):
        queue.serve(3, 2)
        queue.serve(60, 1, died)
        queue.serve(61, 1)
    assert leaves.late.sum() == 0.0
    assert dies.late.sum() == 4.0


def test_tokens_that_come_too_slowly_are_late() -> None:
    slow = Engine(prefill_tok_s=10_000, decode_tok_s=200, step_s=0.01)  # 30 at once: one token in 150 ms
    rows = [(1.0, 10, 100)] * 30
    queue = queue_of(recorded(rows, 60), slow)
    queue.serve(60, 1)
    assert queue.late.sum() == 30.0
    queue = queue_of(recorded(rows, 60), slow)
    queue.serve(60, 3)
    assert queue.late.sum() == 0.0


@pytest.mark.parametrize(("replicas", "hit"), [([1, 1], 512.0), ([1, 0], 0.0)])
def test_what_a_cache_has_of_a_prompt_is_not_read_again_unless_the_replica_was_another(
    replicas: list[int], hit: float
) -> None:
    trace = Requests(
        np.array([0.0, 30.0, 40.0]),
        np.array([600.0, 700.0, 1.0]),
        np.array([5.0, 5.0, 1.0]),
        np.array([1, 1]),
        np.array([0, 1, 2, 2]),
    )
    queue = queue_of(load(trace, ENGINE, 1.0, (1, 1), 0))
    queue.serve(10, replicas[0])
    queue.serve(20, replicas[1])
    queue.serve(41, 1)
    assert queue.prefix_tokens() == pytest.approx((hit, 1301.0))


def test_blocks_that_were_not_touched_for_long_are_gone() -> None:
    """There is room for seven blocks: after seven others the first one is no longer there, after six it is."""
    for others, share in ((6, 512.0), (7, 0.0)):
        count = others + 2
        names = [0, *range(1, others + 1), 0]
        trace = Requests(
            10.0 * np.arange(count, dtype=np.float64),
            np.full(count, 520.0),
            np.full(count, 2.0),
            np.array(names),
            np.arange(count + 1),
        )
        queue = queue_of(load(trace, ENGINE, 1.0, (1, 1), 0))
        queue.serve(count * 10, 1)
        assert queue.prefix_tokens() == pytest.approx((share, 520.0 * count)), others


def test_the_share_of_prompts_that_caches_had_is_of_all_tokens_of_all_endpoints() -> None:
    def asking(prompt: float, blocks: list[int]) -> Load:
        """So many tokens every ten seconds, with a block each, from when the replicas are there."""
        count = len(blocks)
        at_s = 600.0 + 10.0 * np.arange(count, dtype=np.float64)
        at_s[0] = 0.0
        every = Requests(at_s, np.full(count, prompt), np.full(count, 2.0), np.array(blocks), np.arange(count + 1))
        return load(every, ROOMY, 1.0, (1, 1), 0)

    loads = {"same": asking(600.0, [0] * 20), "other": asking(6_000.0, list(range(20)))}
    plain = scene_of(steady(1.0))
    services = tuple(
        Service(replace(plain.services[0].spec, name=EndpointName(name)), ROOMY, one) for name, one in loads.items()
    )
    scene = replace(plain, singly=True, services=services, horizon_s=float(len(loads["same"].work_s)))
    found = Run(scene, decide, PolicyConfig(forecast_share=0.0)).outcome()
    assert found.prefix_share == pytest.approx(18 * 512 / (20 * 600 + 20 * 6_000), rel=0.06)


def test_places_are_made_as_they_are_needed() -> None:
    rows = [(0.5, 1, 2)] * 40_000
    queue = queue_of(recorded(rows, 30))
    queue.serve(2, 0)
    assert queue.at_work(0).held == 40_001
    queue.serve(30, 40)
    assert queue.at_work(40).held == 0
    assert answers(queue) == 40_001


@pytest.mark.parametrize("per_s", [0.3, 0.5])
def test_where_a_fluid_is_in_time_they_are_too(per_s: float) -> None:
    """Four replicas at 0.3 and 0.5 of their speed: nobody is late in either."""
    given_load = steady(per_s * 4 / ENGINE.work_s(500, 50))
    fluid, singly = Queue(given_load, ROOMY, SLO_S), queue_of(given_load, ROOMY)
    for second in range(5, 600, 5):
        fluid.serve(second, 4)
        singly.serve(second, 4)
    asked = given_load.requests.sum()
    assert fluid.late.sum() <= 0.002 * asked
    assert singly.late.sum() <= 0.002 * asked


def test_where_demand_is_beyond_all_speed_both_are_late() -> None:
    given_load = steady(1.5 * 4 / ENGINE.work_s(500, 50))
    fluid, singly = Queue(given_load, ROOMY, SLO_S), queue_of(given_load, ROOMY)
    for second in range(5, 600, 5):
        fluid.serve(second, 4)
        singly.serve(second, 4)
    assert fluid.late.sum() > 0.9 * given_load.requests.sum()
    assert singly.late.sum() > 0.9 * given_load.requests[:595].sum()


def test_a_replica_is_full_with_so_many_that_their_work_is_its_share() -> None:
    """One that is given what it takes to be full has so many at once: Little's law, once more by another way."""
    count = at_full(ROOMY, steady(1.0))
    queue = queue_of(steady(ENGINE.full / ENGINE.work_s(500, 50), 1_200), ROOMY)
    seen = []
    for second in range(1, 1_200):
        queue.serve(second, 1)
        seen.append(queue.at_work(1).inflight)
    assert count == pytest.approx(np.mean(seen[60:]), rel=0.2, abs=1)


def test_bins_tell_times_within_a_few_per_cent() -> None:
    for seconds in (0.001, 0.05, 2.0, 300.0):
        number = int(np.log10(seconds / batching.SHORTEST_S) * batching.PER_DECADE)
        assert batching.seconds_of_bin(np.array([number]))[0] == pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize("seed", spread([0, 1]))
@pytest.mark.parametrize(("share", "most"), [(0.0, 1.125), (0.95, 1.2)])
def test_a_pool_comes_to_the_same_by_a_fluid_and_one_by_one(seed: int, share: float, most: float) -> None:
    """Slot-seconds of training differ by an eighth at most, and in one direction; with a forecast by a fifth.

    For a fluid a replica is full at its share, and what is beyond it in any second waits; a replica that batches takes
    it in and is a little slower. So the fluid is the harsher one, and keeps more room where surges hurt.
    """
    seconds = np.arange(4 * HOUR_S)
    per_s = (8.0 + 16.0 * (1 - np.cos(4 * np.pi * seconds / len(seconds))) / 2) / ROOMY.work_s(500, 50)
    random = np.random.default_rng(seed)
    counts = random.poisson(per_s).astype(np.float64)
    asked = Load(lengths(counts, np.full(len(counts), ROOMY.work_s(500, 50)), random), counts, 500.0, 50.0)
    found = {}
    for singly in (False, True):
        scene = scene_of(asked, jobs_of(80, every_s=150, workers=4, hours=1.0), nodes=8, per_node=8, seed=seed)
        (one,) = scene.services
        spec = replace(one.spec, target_requests=at_full(ROOMY, asked)) if singly else one.spec
        scene = replace(scene, singly=singly, services=(Service(spec, ROOMY, asked),), tick_s=5.0)
        found[singly] = Run(scene, decide, PolicyConfig(forecast_share=share)).outcome()
    for outcome in found.values():
        assert outcome.late.sum() < 0.02 * outcome.requests.sum()
    assert found[True].requests.sum() == found[False].requests.sum() == counts.sum()
    assert 0.99 <= found[True].slot_s[Use.TRAINING] / found[False].slot_s[Use.TRAINING] <= most
    assert found[True].busy_s == pytest.approx(found[False].busy_s, rel=0.02)


def test_a_node_that_fails_takes_the_requests_of_its_replicas_along() -> None:
    asked = steady(8.0 / ENGINE.work_s(500, 50) * 0.4, 1_800)
    plain = scene_of(asked)
    scene = replace(plain, singly=True, services=(Service(plain.services[0].spec, ROOMY, asked),), tick_s=5.0)
    late = [
        Run(replace(scene, failures=failures), decide, PolicyConfig()).outcome().late[4].sum()
        for failures in ((), (Failure(1_300.0, 0, 3_600.0),))
    ]
    assert late[1] > late[0], "of the stretch in which it fails"


def test_what_gateways_knew_before_is_known_until_it_is_a_minute_old() -> None:
    queue = RequestQueue(Drawn(recorded([], seconds=300), ENGINE, (0, 0)), SLO_S, TPOT_S, before=(50.0, 0.5))
    stays = []
    for second in (5, 9, 11, 30):
        queue.serve(second, 0)
        stays.append(queue.at_work(0).stay_s)
    assert stays == [0.5, 0.5, 0.0, 0.0]


def test_it_is_compiled_once_whatever_numbers_an_engine_is_told_in() -> None:
    for engine in (ENGINE, replace(ENGINE, prefill_tok_s=10_000.0, decode_tok_s=2_000.0, kv_tokens=4_096.0)):
        queue_of(recorded([(0.5, 10, 10)], 20), engine).serve(20, 1)
    assert len(batching.play.signatures) == 1, "it takes half a minute each time"
