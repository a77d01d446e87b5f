"""Where a start's time went, by what the ranks' processes remember."""

from typing import Any

import pytest

from ebbtide.client.messages import RankLoad
from ebbtide_serve.engine.start_report import StartReport, loads_of, sound, stages_of
from ebbtide_serve.loading.start_record import StartRecord


def record(**moments_s: float) -> dict[str, Any]:
    return StartRecord(moments_s=moments_s).to_dict()


def test_the_slowest_rank_counts_for_each_stage() -> None:
    ranks = [
        record(device=12.0, weights_done=15.0, compile_done=30.0),
        record(device=11.0, weights_done=18.0, compile_done=29.0),
    ]
    assert stages_of(ranks, 10.0, 31.5) == {"process": 2.0, "weights": 6.0, "compile": 12.0, "warm-up": 1.5}


def test_no_stage_is_negative_whatever_the_order() -> None:
    stages = stages_of([record(device=15.0, weights_done=12.0, compile_done=11.0)], 10.0, 14.0)
    assert stages == {"process": 5.0, "weights": 0.0, "compile": 0.0, "warm-up": 0.0}


def test_ranks_that_do_not_know_give_no_stages() -> None:
    assert stages_of([], 0.0, 1.0) == {}
    assert stages_of([record(device=1.0)], 0.0, 2.0) == {}


def test_loads_are_told_by_rank_with_the_reasons_for_a_slower_way() -> None:
    one, other, none = StartRecord(rank=0), StartRecord(rank=1), StartRecord(rank=2)
    from ebbtide.storage.transport.transfer_report import Mode, TransferReport

    one.add("ebbtide_flat", TransferReport({Mode.DIRECT: 7}, 1.0, why_not_better="no GPU"), 1.0)
    other.add("ebbtide", TransferReport({Mode.GDS: 9}, 1.0), 2.0)
    other.reasons.append("no flat form yet")
    found = loads_of([one.to_dict(), other.to_dict(), none.to_dict()], "the store hangs")
    assert found == (
        RankLoad(0, "ebbtide_flat", {"posix direct": 7}, 1.0, ("no GPU",)),
        RankLoad(1, "ebbtide", {"gds": 9}, 2.0, ("no flat form yet",)),
        RankLoad(2, "vllm", {}, 0.0, ("the store hangs",)),
    )


def test_a_sound_report_stays_as_it_is() -> None:
    told = StartReport({"process": 1.5}, (RankLoad(0, "ebbtide", {"gds": 9}, 2.0, ("why",)),))
    assert sound(told) == told


@pytest.mark.parametrize(
    "odd",
    [
        StartReport({"process": float("nan")}),
        StartReport({"process": "soon"}),  # type: ignore[dict-item]
        StartReport({"process": None}),  # type: ignore[dict-item]
        StartReport({}, (RankLoad(0, "mine", {}, float("inf")),)),
        StartReport({}, (RankLoad(0, "mine", {"ram": float("inf")}),)),  # type: ignore[dict-item]
        StartReport({}, ("mine",)),  # type: ignore[arg-type]
        StartReport(None),  # type: ignore[arg-type]
        None,
    ],
    ids=str,
)
def test_what_an_engine_of_anybodys_tells_amiss_is_left_out(odd: StartReport) -> None:
    assert sound(odd) == StartReport()
