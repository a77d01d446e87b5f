"""What teams do instead: in which order jobs go, and how many replicas there are."""

from ebbtide.pool.ids import EndpointName
from ebbtide_autoscaler.draft import Draft
from ebbtide_autoscaler.signals import EndpointSignals, PolicyConfig, Snapshot
from ebbtide_autoscaler.simulate.rivals import DAY_S, SLICE_S, Schedule, Servers, newest_first, whole_servers
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.test_policy import a_pool, slots, with_job

CHAT = EndpointName("chat")
CONFIG = PolicyConfig()


def lacking(count: int) -> Draft:
    return Draft(free=[], missing=count, missing_for="chat")


def asking(requests: float) -> Snapshot:
    return Snapshot(a_pool(), {CHAT: EndpointSignals(arriving_per_s=requests, stay_s=1.0, known=True)})


def test_the_newest_goes_first() -> None:
    state = a_pool(nodes={"n0": 3})
    for number, slot in enumerate(slots(3)):
        state = with_job(state, a_job(f"j{number}", workers_max=1), (slot,), at_s=1000.0 + number)
    draft = lacking(2)
    newest_first(5000.0, state, draft, CONFIG)
    assert [getattr(move, "job", "") for move in draft.moves] == ["j2", "j1"]


def test_the_server_whose_jobs_have_the_fewest_gpus_comes_back_first_and_all_of_it() -> None:
    n1 = slots(2, "n1")
    state = with_job(a_pool(nodes={"n0": 2, "n1": 2}), a_job("both", workers_max=2), slots(2))
    state = with_job(state, a_job("a", workers_max=1), n1[:1])
    draft = lacking(1)
    whole_servers(5000.0, state, draft, CONFIG)
    assert [getattr(move, "job", "") for move in draft.moves] == ["a"]
    draft = lacking(2)
    whole_servers(5000.0, state, draft, CONFIG)
    assert [getattr(move, "job", "") for move in draft.moves] == ["a", "both"]


def test_servers_are_whole_and_are_held_for_a_while() -> None:
    servers = Servers({CHAT: (4, 8)}, {CHAT: 64}, 300.0)
    assert servers(0.0, asking(4.0))[CHAT] == (8, 8)
    assert servers(5.0, asking(50.0))[CHAT] == (16, 16)
    assert servers(10.0, asking(4.0))[CHAT] == (16, 16)
    assert servers(306.0, asking(4.0))[CHAT] == (8, 8)


def test_a_schedule_lends_nothing_on_the_first_day_and_what_the_day_before_left_on_the_second() -> None:
    schedule = Schedule({CHAT: 1}, {CHAT: 50})
    first = [schedule(at, asking(30.0 if at < DAY_S / 2 else 5.0)) for at in range(0, int(DAY_S), int(SLICE_S))]
    assert {found[CHAT] for found in first[:-1]} == {(50, 50)}
    assert schedule(DAY_S + 1.0, asking(2.0))[CHAT] == (33, 50)  # as yesterday morning, and ten per cent
    assert schedule(1.75 * DAY_S, asking(2.0))[CHAT] == (6, 50)
