"""The report: the same verdict for people and programs, and a schema that keeps its names."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.probe.fact import Fact, hindering
from ebbtide.diagnostics.probe.node_reading import NodeReading
from ebbtide.diagnostics.probe.probe_report import Place, ProbeReport, Target, report
from ebbtide.snapshot.tiers import Means, Rates, Tier

GB = 10**9
TARGET = Target(kind="job", name="t", pool="p", state="running", worker_bytes=GB, grace_s=30, kill_loses_s=12.0)
NVLS = Fact("nccl.nvls", "NVLS is on", "/proc/1/environ", "1", hindering(Means.DRIVER), "switch it off")


def reading(*facts: Fact, ram: int | None = 50 * GB, disk: int | None = 500 * GB, gpus: int = 0) -> NodeReading:
    return NodeReading("machine", ram, disk, gpus, 3 * GB, Rates(), facts)


def place(found: NodeReading | str, *, node: str = "ab" * 28, workers: int = 2, budget: int | None = 10 * GB) -> Place:
    return Place(node=node, ranks={0: 7}, workers=workers, budget_bytes=budget, reading=found)


def test_what_all_workers_of_a_node_need_is_asked_of_it() -> None:
    found = report(TARGET, [place(reading(), workers=3)])
    park = found.nodes[0].tiers[0]
    assert (park.tier, park.holds, park.ram_bytes) == (Tier.EVICT_AND_CUDA, True, 3 * GB)
    assert found.choice is Tier.EVICT_AND_CUDA
    assert found.summary == "job t: park in place: slots free after 0.3 s, back after 0.25 s, it loses nothing"


def test_facts_about_the_job_count_on_every_node() -> None:
    told = Fact("job.in_place", "told not to", "the file", False, hindering(Means.EVICT), "remove it")
    target = replace(TARGET, facts=(told,))
    found = report(target, [place(reading()), place(reading(), node="cd" * 28)])
    assert found.choice is Tier.STOP_AND_RESTART
    for node in found.nodes:
        against = node.tiers[0].why_not
        assert [(one.what, one.remedy) for one in against] == [("told not to", "remove it")]
        assert node.facts[0].id == "job.in_place" and node.facts[0].hinders == ("evict",)


def test_ranks_leave_in_one_way_and_the_worst_node_decides() -> None:
    poor = place(reading(), node="cd" * 28, budget=0)
    found = report(TARGET, [place(reading()), poor])
    assert [node.choice for node in found.nodes] == [Tier.EVICT_AND_CUDA, Tier.STOP_AND_RESTART]
    assert found.choice is Tier.STOP_AND_RESTART and "on 2 nodes: stop and restart" in found.summary


def test_a_gang_with_nothing_in_common_is_killed() -> None:
    one = place(reading(disk=None))
    other = place(reading(), node="cd" * 28, budget=0)
    found = report(TARGET, [one, other])
    assert found.choice is Tier.KILL
    assert (
        found.summary
        == "job t on 2 nodes: kill at the deadline: it is killed after 30 s, and up to 12 s of work is lost"
    )


def test_a_node_that_nobody_could_read_leaves_it_open() -> None:
    found = report(TARGET, [place(reading()), place("node cd did not answer", node="cd" * 28)])
    assert found.choice is None and found.summary == "node cd did not answer"
    assert found.nodes[1].unread and found.nodes[1].tiers == () and found.nodes[0].choice is Tier.EVICT_AND_CUDA


def test_a_gpu_that_cannot_be_frozen_still_frees_by_spilling() -> None:
    found = report(TARGET, [place(reading(NVLS, gpus=8))])
    assert found.choice is Tier.EVICT_AND_SPILL
    lines = {line.tier: line for line in found.nodes[0].tiers}
    assert [one.what for one in lines[Tier.EVICT_AND_CUDA].why_not] == ["NVLS is on"]
    assert "the processes end" in lines[Tier.EVICT_AND_SPILL].way
    lanes = {rate.lane.value for rate in found.nodes[0].rates}
    assert "pcie_out" in lanes and "memcpy_out" not in lanes


def test_a_session_can_only_become_an_image() -> None:
    target = Target(kind="session", name="s", pool="p", state="running", worker_bytes=0, grace_s=600, kill_loses_s=None)
    found = report(target, [place(reading(), workers=1, budget=None)])
    assert found.choice is Tier.CRIU_IMAGE
    assert found.nodes[0].tiers[4].disk_bytes == 3 * GB
    assert found.nodes[0].tiers[5].lost_s is None


def test_it_can_be_read_again_by_its_own_schema() -> None:
    found = report(TARGET, [place(reading(NVLS))])
    assert ProbeReport.model_validate_json(found.model_dump_json()) == found


def test_a_fact_without_words_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="must say what is so"):
        Fact("x", "", "there")
    with pytest.raises(AssertionError, match="must say what is so"):
        Fact("x", "so", "")
    with pytest.raises(AssertionError, match="what would mend it"):
        Fact("x", "w", "h", None, hindering(Means.CRIU))


def test_the_example_of_the_page_is_of_this_schema() -> None:
    page = (Path(__file__).parents[4] / "docs" / "preemption.md").read_text()
    (example,) = (part.split("```")[0] for part in page.split("```json\n")[1:])
    found = ProbeReport.model_validate_json(example)
    assert {line.tier for line in found.nodes[0].tiers} <= set(Tier)
