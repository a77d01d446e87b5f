"""The benchmark of loading to a GPU runs without one, from a bare checkout, and would see a wrong bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import ceilings
from benchmarks.gpu.loaders import Loader
from benchmarks.gpu.storage import COMMAND, FIO, LINK, LOOP, Run, bars_of, rows_of
from benchmarks.gpu.weights import Shapes, Weights, make_weights
from benchmarks.rows import row
from ebbtide.storage.memory.buffer_pool import BufferPool

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = Shapes(hidden=64, key_value=16, feed_forward=128)
# What a machine with PyTorch alone does not have.
ABSENT = ("ray", "vllm", "pydantic", "aiohttp", "fastapi", "kvikio", "fastsafetensors")


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The result of a dry run."""
    out = tmp_path_factory.mktemp("out")
    code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); sys.argv = ['storage', *sys.argv[1:]]; "
    code += "from benchmarks.gpu.storage import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--dry-run-cpu", "--out", str(out), "--directory", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "platform"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in out.iterdir()] == ["gpu_storage_dry_run.json"], "the model's files are gone"
    found: dict[str, object] = json.loads((out / "gpu_storage_dry_run.json").read_text())
    return found


def test_a_dry_run_needs_torch_alone_and_claims_nothing(dry_run: dict[str, object]) -> None:
    assert dry_run["command"] == f"{COMMAND} --dry-run-cpu"
    bars = dry_run["bars"]
    assert isinstance(bars, list) and len(bars) == 5
    assert all(bar["value"] is None and bar["met"] is False for bar in bars)


def test_the_result_has_both_ceilings_and_every_way_that_ran(dry_run: dict[str, object]) -> None:
    rows = dry_run["rows"]
    assert isinstance(rows, list)
    cases = {one["case"] for one in rows}
    assert {LINK, LOOP} <= cases
    for name in ("ebbtide page-locked posix, 4 threads, hashed", "safetensors"):
        assert {f"{name}, cold", f"{name}, warm"} <= cases
    assert all(one["n"] == 2 and one["median"] > 0 for one in rows if one["metric"] == "speed")


def test_what_is_not_there_stands_there_as_not_installed(dry_run: dict[str, object]) -> None:
    missing, versions, notes = dry_run["missing"], dry_run["versions"], dry_run["notes"]
    assert isinstance(missing, dict) and isinstance(versions, dict) and isinstance(notes, dict)
    assert missing["fastsafetensors, nogds"] == "not installed"
    assert missing["ebbtide gds, hashed"] == "the device is no GPU"
    assert "no GPU" in str(dry_run["hardware"])
    assert notes["cold by"] == "fadvise", "a dry run must not drop the caches of the machine"
    assert notes["filesystem"]


def test_without_a_gpu_the_real_run_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.storage"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "platform"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "there is no GPU that torch can use" in done.stderr


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return make_weights(tmp_path, 400_000, CPU, shapes=TINY, layers_per_file=1, say=lambda _text: None)


def right(weights: Weights) -> dict[str, torch.Tensor]:
    found = {}
    for name, data in weights.reference.items():
        found[name] = data.clone().view(torch.bfloat16)
    return found


def test_a_wrong_bit_a_wrong_type_and_a_missing_tensor_are_seen(weights: Weights) -> None:
    assert len(weights.files) >= 2 and weights.wrong(right(weights)) == ""
    name = "model.layers.1.mlp.down_proj.weight"
    spoilt = right(weights)
    spoilt[name].view(torch.uint8)[-1] ^= 1
    assert name in weights.wrong(spoilt)
    assert "float16" in weights.wrong(right(weights) | {name: right(weights)[name].half()})
    lacking = right(weights)
    del lacking[name]
    assert "tensors came" in weights.wrong(lacking)


def test_the_files_hold_what_was_made(weights: Weights) -> None:
    import safetensors.torch

    loaded: dict[str, torch.Tensor] = {}
    for path in weights.paths:
        loaded |= safetensors.torch.load_file(path)
    assert weights.wrong(loaded) == ""


def test_a_loader_that_brings_wrong_bytes_ends_the_run(weights: Weights) -> None:
    def load(weights: Weights, _warm: bool) -> dict[str, torch.Tensor]:
        return dict.fromkeys(weights.reference, torch.zeros(1, dtype=torch.bfloat16))

    run = Run(CPU, BufferPool(1), weights, [Loader("liar", load)], whole_machine=False)
    with pytest.raises(SystemExit, match=r"liar, cold: .* has other bytes than were stored"):
        run.load(run.loaders[0], "cold")


def found_of(**speeds: tuple[float, ...]) -> dict[tuple[str, str, str], tuple[float, ...]]:
    names = {"link": LINK, "loop": LOOP, "fio": FIO}
    return {(names.get(name, name.replace("_", " ")), "speed", "GB/s"): values for name, values in speeds.items()}


def test_a_load_is_held_against_the_limit_of_its_own_round() -> None:
    found = found_of(link=(10.0, 10.0), loop=(2.0, 4.0), fio=(4.0, 3.0))
    found |= {
        ("ebbtide x, hashed, cold", "speed", "GB/s"): (3.6, 3.6),
        ("ebbtide x, hashed, warm", "speed", "GB/s"): (8.0, 9.0),
    }
    ratios = {one.case: one for one in rows_of(found) if one.metric == "of the limit"}
    assert (ratios["ebbtide x, hashed, cold"].min, ratios["ebbtide x, hashed, cold"].max) == (0.9, 0.9)
    assert (ratios["ebbtide x, hashed, warm"].min, ratios["ebbtide x, hashed, warm"].max) == (0.8, 0.9)


def test_the_bars_take_our_best_checked_load_and_the_others_best() -> None:
    rows = [
        row("ebbtide a, hashed, cold", "of the limit", "ratio", [0.91]),
        row("ebbtide b, not hashed, cold", "of the limit", "ratio", [0.99]),
        *(
            row(case, "speed", "GB/s", [speed])
            for case, speed in (
                ("ebbtide a, hashed, cold", 2.0),
                ("ebbtide b, not hashed, cold", 9.0),
                ("fastsafetensors, nogds, cold", 1.0),
                ("fastsafetensors, gds, cold", 1.6),
                ("safetensors, cold", 2.5),
                ("ebbtide a, hashed, warm", 4.0),
                ("safetensors, warm", 4.0),
            )
        ),
    ]
    bars = {bar.bar: (bar.value, bar.met) for bar in bars_of(rows, dry=False)}
    assert bars == {
        "gpu_load_ratio": (0.91, True),
        "gpu_load_vs_fastsafetensors_cold": (1.25, True),
        "gpu_load_vs_safetensors_cold": (0.8, False),
        "gpu_load_vs_fastsafetensors_warm": (None, False),
        "gpu_load_vs_safetensors_warm": (1.0, False),
    }


def test_the_storages_loop_reads_every_byte_and_gives_its_buffers_back(tmp_path: Path) -> None:
    for name, size in (("a", 20_000_003), ("b", 1), ("c", 16 << 20)):
        (tmp_path / name).write_bytes(bytes(size))
    pool = BufferPool(2)
    assert ceilings.storage_gb_per_s(pool, sorted(tmp_path.iterdir()), threads=2) > 0
    assert ceilings.link_gb_per_s(pool, CPU, total_bytes=1) > 0
    assert pool.free == 2
