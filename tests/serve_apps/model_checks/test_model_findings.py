"""What `validate` and `up` say of a model's config.json, with line and column, and when they leave it to vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config.checks.room_checks import Look, room_problems
from ebbtide.config.loading.pool_file_loader import load_file
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.names import object_id
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide_serve.model_checks.model_findings import ALLOW

LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "num_attention_heads": 8}
TEXT = """\
pool: {name: demo, slots: 8, shared_dir: shared}
endpoints:
  - name: chat
    model: MODEL
    gpus_per_replica: GPUS
    engine: ENGINE
"""


@pytest.fixture(autouse=True)
def not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)


def told(
    folder: Path,
    engine: dict[str, Any],
    config: object = LLAMA,
    *,
    model: str = "m",
    gpus: int = 1,
    offline: bool = False,
) -> list[str]:
    """What is said of a pool file in ``folder``; ``config`` is the model's, as text or as JSON; None: it has none."""
    (folder / "m").mkdir(exist_ok=True)
    if config is not None:
        (folder / "m" / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    file = folder / "pool.yaml"
    text = TEXT.replace("MODEL", model).replace("GPUS", str(gpus)).replace("ENGINE", json.dumps(engine))
    file.write_text(text)
    found = room_problems(load_file(file), Look(offline=offline, note=lambda line: None))
    return [str(one).removeprefix(f"{file}:") for one in found]


def test_a_context_that_the_model_does_not_have_is_told_with_its_limit(tmp_path: Path) -> None:
    assert told(tmp_path, {"max_model_len": 999999}) == [
        f"6:31: endpoints[0].engine.max_model_len: the model allows at most 2048 (max_position_embeddings in {tmp_path}"
        f"/m/config.json), is 999999 (or set {ALLOW}=1 if you know that it can do more)"
    ]
    (said,) = told(tmp_path, {"max_model_len": 9000}, LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert "at most 8192 (max_position_embeddings, scaled in " in said
    nested = {"model_type": "llava", "text_config": LLAMA, "vision_config": {}}
    assert "at most 2048 " in told(tmp_path, {"max_model_len": 2049}, nested)[0]
    assert told(tmp_path, {"max_model_len": 10**400})[0].startswith("6:31: ")
    assert "at most 2048 " in told(tmp_path, {"max_model_len": "2049"})[0], "a text with digits, as pydantic reads it"


@pytest.mark.parametrize(
    ("engine", "config"),
    [
        ({"max_model_len": 2048}, LLAMA),
        ({"max_model_len": -1}, LLAMA),
        ({"max_model_len": None}, LLAMA),
        ({}, LLAMA),
        ({"max_model_len": 4096}, LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ({"max_model_len": 4096}, LLAMA | {"model_max_length": 4096}),
        ({"max_model_len": 4096}, LLAMA | {"model_type": "of_its_author", "auto_map": {}}),
        ({"max_model_len": 4096, "hf_overrides": {"max_position_embeddings": 4096}}, LLAMA),
        ({"max_model_len": 4096, "hf_overrides": {"rope_scaling": {"factor": 2.0}}}, LLAMA),
        ({"max_model_len": 4096, "hf_config_path": "elsewhere"}, LLAMA),
        ({"max_model_len": 4096, "config_format": "mistral"}, LLAMA),
        ({"max_model_len": 4096}, "{"),  # told of by the look at the directory
        ({"max_model_len": 4096}, "[]"),
        ({"max_model_len": 4096}, "[" * 100_000),
        ({"max_model_len": 4096}, None),
    ],
    ids=str,
)
def test_what_vllm_takes_or_only_vllm_can_judge_is_left_alone(
    engine: dict[str, Any], config: object, tmp_path: Path
) -> None:
    assert told(tmp_path, engine, config) == []


@pytest.mark.parametrize("beside", ["params.json", "sentence_bert_config.json"])
def test_another_file_that_may_go_first_leaves_it_to_vllm(beside: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / beside).write_text("{}")
    assert told(tmp_path, {"max_model_len": 4096}) == []


@pytest.mark.parametrize(("value", "problems"), [("1", 0), (" True ", 0), ("0", 1), ("", 1), ("yes", 1)])
def test_vllms_own_variable_allows_it(
    value: str, problems: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, value)
    assert len(told(tmp_path, {"max_model_len": 4096})) == problems


def test_offline_no_model_is_looked_at(tmp_path: Path) -> None:
    assert told(tmp_path, {"max_model_len": 4096}, offline=True) == []


def test_a_model_in_the_pools_store_is_looked_at_under_each_of_its_names(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path / "shared" / "store")
    stored = object_id("a" * 64)
    paths.object(stored).mkdir(parents=True)
    (paths.object(stored) / "config.json").write_text(json.dumps(LLAMA))
    Refs(paths, Disk()).write("org/tiny", "latest", stored)
    for model in ("org/tiny:latest", "hf://org/tiny", "org/tiny"):
        (said,) = told(tmp_path, {"max_model_len": 4096}, model=model)
        assert f"at most 2048 (max_position_embeddings in {paths.object(stored)}/config.json)" in said, model
    assert told(tmp_path, {"max_model_len": 4096}, model="org/other:latest") == [], "told of where it is looked for"


def test_heads_that_the_gpus_cannot_share_are_told(tmp_path: Path) -> None:
    assert told(tmp_path, {}, gpus=3) == [
        f"5:23: endpoints[0].gpus_per_replica: the model has 8 attention heads ({tmp_path}/m/config.json), which 3 "
        "GPUs cannot share (vLLM takes 1, 2)"
    ]
    assert told(tmp_path, {}, gpus=4) == []
    assert told(tmp_path, {"hf_overrides": {"num_attention_heads": 6}}, gpus=3) == []
    assert told(tmp_path, {}, LLAMA | {"num_attention_heads": None}, gpus=3) == []


def test_a_config_that_names_no_model_is_told(tmp_path: Path) -> None:
    said = f"4:12: endpoints[0].model: {tmp_path}/m/config.json names no model_type: vLLM cannot tell what model it is"
    assert told(tmp_path, {"max_model_len": 4096}, {}) == [said]
    assert told(tmp_path, {"hf_overrides": {"model_type": "llama"}}, {}) == []
