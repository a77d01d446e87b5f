"""Weights that an import would not take, and that a model may need."""

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.excluded_weights import left_behind
from ebbtide.storage.models.sources.source import SourceFile

WHOLE = ("config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors")


def of(*names: str) -> list[str]:
    return left_behind([SourceFile(name, 9, "s") for name in names], "here")


@pytest.mark.parametrize(
    ("beside", "missed"),
    [
        ((), []),
        (("whisper-large-v3/model.safetensors",), ["whisper-large-v3/model.safetensors"]),
        (("2_Dense/pytorch_model.bin", "1_Pooling/config.json"), ["2_Dense/pytorch_model.bin"]),
        (("colbert_linear.pt", "sparse_linear.pt"), ["colbert_linear.pt", "sparse_linear.pt"]),
        # The index says what engines read of the directory itself.
        (("consolidated.safetensors", "other.safetensors"), []),
        # The same weights for other programs.
        (("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "original/consolidated.00.pth"), []),
        (("consolidated.00.pt", "consolidated.00.pth"), []),
        (("onnx/model.bin", "openvino/openvino_model.bin", "metal/model.bin", "flax_model.msgpack"), []),
        # What training leaves.
        (("training_args.bin", "optimizer.pt", "rng_state_0.pth", "scheduler.pt", "checkpoint-5/optimizer.pt"), []),
        (("checkpoint-5/model.safetensors", "notes.txt", "run.py"), []),
    ],
)
def test_only_what_an_engine_may_read_counts(beside: tuple[str, ...], missed: list[str]) -> None:
    assert of(*WHOLE, *beside) == missed


def test_without_an_index_engines_read_all_safetensors_files() -> None:
    assert of("config.json", "model.safetensors") == []
    assert of("config.json", "model.safetensors", "extra.safetensors") == ["extra.safetensors"]
    assert of("config.json", "model.safetensors", "consolidated.safetensors") == ["consolidated.safetensors"]


def test_what_is_no_model_is_refused_as_by_an_import() -> None:
    with pytest.raises(Refused):
        of("config.json")
