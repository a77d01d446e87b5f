"""Which models may have a flat form, and that another model never gets the same key."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ebbtide.storage.names import ObjectId
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.code_digest import code_digest
from ebbtide_serve.loading.flat.identity import flat_key
from tests.serve_apps.loading.small_model import SmallModel, facts

MODEL = ObjectId("ab" * 32)


def test_equal_models_have_equal_keys() -> None:
    assert flat_key(SmallModel(), MODEL, facts()) == flat_key(SmallModel(), MODEL, facts(rank=0))


@pytest.mark.parametrize(
    "other",
    [
        {"engine": "small 2"},
        {"dtype": "fp16"},
        {"quantization": "fp8"},
        {"device": "cuda 9.0"},
        {"config": {"layers": 3}},
        {"shaping": {"expert_parallel": True}},
    ],
)
def test_what_could_change_a_parameter_changes_the_key(other: dict[str, Any]) -> None:
    before = flat_key(SmallModel(), MODEL, facts())
    assert flat_key(SmallModel(), MODEL, facts(**other)) != before
    assert flat_key(SmallModel(), ObjectId("cd" * 32), facts()) != before
    assert flat_key(SmallModel(), MODEL, facts(tp=2)) != before


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"quantizes_online": True}, "quantised while it is loaded"),
        ({"splits": {"pipeline": 2, "data": 1}}, "pipeline 2"),
        ({"balances_experts": True}, "experts move"),
    ],
)
def test_what_a_flat_form_cannot_be_is_refused_with_the_reason(other: dict[str, Any], told: str) -> None:
    with pytest.raises(FlatUnusable, match=told):
        flat_key(SmallModel(), MODEL, facts(**other))


SOURCE = "from torch import nn\nclass Own(nn.Linear):\n    def load_weights(self, weights):\n        return {what!r}\n"


def digest(directory: Path, what: str) -> str:
    (directory / "own_model.py").write_text(SOURCE.format(what=what))
    sys.modules.pop("own_model", None)
    importlib.invalidate_caches()
    made: nn.Module = importlib.import_module("own_model").Own(1, 1)
    return code_digest(nn.Sequential(made))


def test_another_source_of_a_models_class_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first = digest(tmp_path, "one")
    assert digest(tmp_path, "one") == first
    assert digest(tmp_path, "two") != first


def test_a_class_without_a_file_still_counts_by_its_name() -> None:
    made = type("Made", (nn.Identity,), {"__module__": "nowhere"})
    assert code_digest(nn.Sequential(made())) != code_digest(nn.Sequential(nn.Identity()))
