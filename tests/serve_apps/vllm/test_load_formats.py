"""The load formats inside real vLLM (CPU build): the same tokens and logprobs, whichever way the weights came.

One process for all engines of one tensor-parallel degree: importing vLLM takes longer than all that is done with it.
What needs vLLM and no engine is forked from that process.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.serve_apps.loading.vllm_programs import LOADS, SOURCES, WORKERS
from tests.serve_apps.replica_under_test import MODEL_CACHE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

Runs = dict[str, dict[str, Any]]


def stored(model: Path, root: Path) -> tuple[str, str]:
    """The model as an object of a store: its directory and its id."""
    store = ObjectStore.at(root, PosixTransport(BufferPool(2)))
    with store.publication(Kind.MODEL, {"model": "tiny"}) as work:
        for path in sorted(model.iterdir()):
            work.add(work.staging.copy(path, path.name))
        found = work.publish([("tiny", "latest")])
    return str(store.paths.object(found)), found


@dataclass(frozen=True)
class Told:
    """What engines told, by name, and what programs that were forked beside them printed."""

    engines: Runs
    programs: list[dict[str, Any]]


def engines(tp: int, runs: list[dict[str, Any]], log: Path, programs: Sequence[tuple[str, object]] = ()) -> Told:
    """Run the programs, each with its argument, then start the engines one after the other."""
    told = {"tp": tp, "runs": runs, "cache_dir": str(MODEL_CACHE), "programs": programs}
    script = Path(__file__).parents[1] / "loading" / "engine_process.py"
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, str(script), json.dumps(told)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    found = {one["name"]: one for one in lines if "name" in one}
    assert list(found) == [run["name"] for run in runs], log.read_text()[-4000:]
    return Told(found, [one for one in lines if "name" not in one])


def run(name: str, load_format: str, model: str, extra: dict[str, Any], *then: str) -> dict[str, Any]:
    return {"name": name, "format": load_format, "model": model, "extra": extra, "then": then}


@pytest.fixture(scope="module")
def told(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Of the process for TP=1."""
    root = tmp_path_factory.mktemp("one")
    model, found = stored(tiny_model, root / "store")
    extra = {"store": str(root / "store"), "object": found}
    keep = extra | {"capture": True}
    runs = [
        run("own", "auto", str(tiny_model), {}),
        run("checkpoint", "ebbtide", model, keep, "publish", "reload"),
        run("flat", "ebbtide_flat", model, keep, "reload", "damage"),
        run("damaged", "ebbtide_flat", model, extra),
        run("elsewhere", "ebbtide_flat", str(tiny_model), extra),
        run("no store", "ebbtide", str(tiny_model), {}),
    ]
    other_model, other = stored(tiny_model, root / "other")
    sources = [{"store": str(root / "other"), "object": other, "capture": True}, other_model, str(tiny_model)]
    turns = [{"store": str(root / "other"), "object": other, "loaders": 3}, [other_model, str(tiny_model)]]
    return engines(1, runs, root / "log", [(WORKERS, None), (SOURCES, sources), (LOADS, turns)])


@pytest.fixture(scope="module")
def alone(told: Told) -> Runs:
    """TP=1."""
    return told.engines


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """TP=2: two ranks in processes of their own."""
    root = tmp_path_factory.mktemp("two")
    model, found = stored(tiny_model, root / "store")
    extra = {"store": str(root / "store"), "object": found, "capture": True}
    runs = [
        run("own", "auto", str(tiny_model), {}),
        run("checkpoint", "ebbtide", model, extra, "publish"),
        run("flat", "ebbtide_flat", model, extra),
    ]
    return engines(2, runs, root / "log").engines


def used(told: dict[str, Any]) -> list[str]:
    return [record["used"] for record in told["records"]]


def read_bytes(told: dict[str, Any]) -> list[int]:
    return [sum(record["bytes_by_mode"].values()) for record in told["records"]]


def test_every_way_says_the_same(alone: Runs, tiny_model: Path) -> None:
    assert used(alone["checkpoint"]) == ["ebbtide"]
    assert used(alone["flat"]) == ["ebbtide_flat"]
    assert len({json.dumps(one["said"]) for one in alone.values()}) == 1
    size_bytes = (tiny_model / "model.safetensors").stat().st_size
    assert read_bytes(alone["checkpoint"]) == [size_bytes]
    assert abs(read_bytes(alone["flat"])[0] - size_bytes) < 16384, "headers differ, and nothing else"
    assert alone["flat"]["records"][0]["reasons"] == []


def test_no_format_says_by_itself_that_the_weights_are_done(alone: Runs) -> None:
    """Else the stage would end before repacking for ours, and after it for vLLM's own loader (see the next test)."""
    moments = {name: set(one["records"][0]["moments_s"]) for name, one in alone.items()}
    assert moments["own"] == set(), "these engines have vLLM's own worker"
    assert all(moments[name] == {"weights"} for name in moments if name != "own")


def test_the_weights_are_done_when_the_workers_load_of_the_model_has_ended(told: Told) -> None:
    found = [one for one in told.programs if "during" in one]
    assert found == [{"during": [False], "after": True}] * 2


def test_weights_that_are_loaded_again_say_the_same(alone: Runs) -> None:
    assert alone["checkpoint"]["reloaded"] == alone["own"]["said"]
    assert alone["flat"]["reloaded"] == alone["own"]["said"]


def test_the_flat_form_is_published_once_and_not_kept_again(alone: Runs) -> None:
    assert alone["checkpoint"]["state"][0]["phase"] == "held"
    found, why = alone["checkpoint"]["published"]
    assert (len(found), why) == (64, "")
    assert alone["flat"]["state"][0]["phase"] == "none"


def test_what_cannot_be_had_is_loaded_in_the_next_way_for_one_reason(alone: Runs) -> None:
    reasons = {name: alone[name]["records"][0]["reasons"] for name in ("damaged", "elsewhere", "no store")}
    assert (used(alone["damaged"]), used(alone["elsewhere"]), used(alone["no store"])) == (
        ["ebbtide"],
        ["vllm"],
        ["vllm"],
    )
    assert all(len(told) == 1 for told in reasons.values()), reasons
    assert "is not what was published" in reasons["damaged"][0]
    assert "is not the directory of object" in reasons["elsewhere"][0]
    assert "names no store" in reasons["no store"][0]


@pytest.mark.hunt  # short: two ranks of a small model in test_checkpoint.py; two engines take 65 s
def test_two_ranks_read_half_each_and_say_the_same(pair: Runs, tiny_model: Path) -> None:
    assert used(pair["checkpoint"]) == ["ebbtide"] * 2
    assert used(pair["flat"]) == ["ebbtide_flat"] * 2
    assert len({json.dumps(one["said"]) for one in pair.values()}) == 1
    size_bytes = (tiny_model / "model.safetensors").stat().st_size
    assert read_bytes(pair["checkpoint"]) == [size_bytes] * 2
    assert all(count < 0.51 * size_bytes for count in read_bytes(pair["flat"]))
    assert [record["rank"] for record in pair["flat"]["records"]] == [0, 1]


def test_secondary_weights_of_another_directory_make_it_a_load_of_vllms_own(told: Told) -> None:
    assert [one["used"] for one in told.programs if "used" in one] == ["ebbtide", "vllm"]


def test_a_load_and_a_reload_take_one_turn_each_whoever_reads(told: Told) -> None:
    """Whatever way weights are read in by a loader of ours, it takes one turn of the pool's, and never two at once."""
    found = [one for one in told.programs if "turns" in one]
    assert found == [{"turns": 1, "at once": [1], "open": 0}] * 4, "ours and vLLM's own, loaded and loaded again"
