"""Everybody who is compared, on one small tide."""

from functools import cache

import pytest

from ebbtide_autoscaler.simulate.bars import bars
from ebbtide_autoscaler.simulate.contenders import CONTENDERS, LYRA, ORACLE, OURS, STATIC
from ebbtide_autoscaler.simulate.engine import USUAL
from ebbtide_autoscaler.simulate.meter import Use
from ebbtide_autoscaler.simulate.report import Played, Report
from ebbtide_autoscaler.simulate.run import Outcome, Scene
from ebbtide_autoscaler.simulate.score import figures
from tests.autoscaler.simulate.scenes import HOUR_S, jobs_of, scene_of, tide
from tests.autoscaler.simulate.test_run import played

HOURS = 4


@cache
def scene() -> Scene:
    return scene_of(tide(HOURS, 0.3, 4.0), jobs_of(12, every_s=300.0, workers=2, hours=1.0))


@cache
def outcome(name: str) -> Outcome:
    return played(scene(), name)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_slot_second_has_one_use_and_no_move_is_refused(name: str) -> None:
    found = outcome(name)
    assert sum(found.slot_s.values()) == pytest.approx(8 * HOURS * HOUR_S)
    assert not found.refused
    assert figures(scene(), found) == figures(scene(), played(scene(), name)), "equal seeds, equal runs"


@pytest.mark.parametrize("name", CONTENDERS)
def test_what_was_trained_is_what_is_done_and_what_was_lost(name: str) -> None:
    found = outcome(name)
    done_s = sum(one.work_s - one.left_s for one in found.training.values())
    lost_s = sum(one.lost_s for one in found.training.values())
    preempted = sum(one.preempted for one in found.training.values())
    assert found.slot_s[Use.TRAINING] == pytest.approx(done_s, abs=1.0 * 2 * preempted + 1e-6)
    assert found.slot_s[Use.LOST] == pytest.approx(lost_s, abs=1e-6)
    assert bool(lost_s) == (name.startswith("kill") or (name.endswith("-own") and bool(preempted)))


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name.endswith("-own")])
def test_its_own_system_is_no_better_than_ours_for_it(name: str) -> None:
    own, ours = (figures(scene(), outcome(one)) for one in (name, name.removesuffix("-own")))
    assert own["goodput_gpu_s"] * own["slo_attainment"] <= ours["goodput_gpu_s"] * ours["slo_attainment"]


def test_a_kill_loses_what_is_behind_the_last_checkpoint_at_most() -> None:
    found = outcome("kill-and-requeue")
    for one in found.training.values():
        assert one.lost_s <= one.preempted * 2 * USUAL.checkpoint_every_s


def a_report(**goodput: tuple[float, float]) -> Report:
    """Contenders with their goodput and their requests in time; the bound is 100."""
    runs = {
        name.replace("_", "-"): {
            0: Played({"goodput_gpu_s": done, "slo_attainment": slo, "bound_gpu_s": 100.0}, {}, 0.0)
        }
        for name, (done, slo) in goodput.items()
    }
    return Report({"slots": 8, "seeds": 1}, runs)


def test_who_beats_the_bound_or_foresight_is_told() -> None:
    assert a_report(ebbtide=(90.0, 1.0), oracle=(95.0, 1.0), static_p100=(10.0, 1.0)).impossible() == []
    assert "the bound is 100" in a_report(ebbtide=(101.0, 1.0)).impossible()[0]
    assert "perfect foresight it is 95" in a_report(ebbtide=(96.0, 1.0), oracle=(95.0, 1.0)).impossible()[0]


def test_who_does_not_serve_is_not_compared() -> None:
    assert a_report(no_preemption=(150.0, 0.98), oracle=(95.0, 1.0)).impossible() == []
    assert a_report(static_p95=(96.0, 0.995), oracle=(95.0, 1.0)).impossible() == []


def of(**more: float) -> dict[str, object]:
    found: dict[str, object] = {name: {"mean": value} for name, value in more.items()}
    spread = {"mean": {"mean": more.get("wait", 1.0)}}
    return found | {"queue_s": spread, "jct_s": spread}


def test_bars_are_met_or_not_and_without_a_rival_left_out() -> None:
    ours = of(slo_attainment=0.9985, waste_share=0.01, double_allocated_gpu_s=0.0, goodput_vs_oracle=0.95)
    found = bars(64, {OURS: ours})
    assert {name for name, bar in found.items() if bar["met"]} == set(found)
    assert "goodput_vs_static_64" not in found and "queue_s_vs_lyra_64" not in found
    found = bars(64, {OURS: ours, STATIC: of(slo_attainment=1.0), LYRA: of(wait=0.5)})
    missed = {name for name, bar in found.items() if not bar["met"]}
    assert missed == {"slo_attainment_64", "queue_s_vs_lyra_64", "jct_s_vs_lyra_64"}
    assert bars(64, {ORACLE: ours}) == {}
