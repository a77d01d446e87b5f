"""Which files of a directory are taken, as a table."""

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.file_selection import MAX_SMALL_BYTES, choose, left_out
from ebbtide.storage.models.sources.source import SourceFile

SMALL = [
    "config.json",
    "tokenizer.json",
    "tokenizer.model",
    "merges.txt",
    "chat_template.jinja",
    "README.md",
    "LICENSE",
]
ONE = ["model.safetensors"]


def files(*names: str, size: int = 10) -> list[SourceFile]:
    return [SourceFile(name, size, "s") for name in names]


def taken(*names: str) -> set[str]:
    return {file.name for file in choose(files(*names), "here").small}


def test_configuration_tokenizer_templates_and_licences_are_taken() -> None:
    more = ["LICENSE.txt", "Notice", "USE_POLICY.md", "original/params.json", "vocab.jsonl", "qwen.tiktoken", "x.YAML"]
    assert taken(*ONE, *SMALL, *more) == {*SMALL, *more}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("modeling_x.py", "code is never run"),
        ("sub/Code.PY", "code is never run"),
        ("pytorch_model.bin", "pickles can run code"),
        ("original/consolidated.00.pth", "pickles can run code"),
        ("x.PT", "pickles"),
        ("training_args.bin", "pickles"),
        ("model.onnx", "neither weights nor configuration"),
        ("model.gguf", "neither"),
        ("tf_model.h5", "neither"),
        ("run.sh", "neither"),
        ("lib.so", "neither"),
        ("setup.cfg", "neither"),
        ("größe.json", "such names cannot be used"),
        ("a b.json", "such names cannot be used"),
        ("manifest.json", "such names cannot be used"),
        ("x.idx.json/../../etc.json", "such names cannot be used"),
        ("-rf.json", "such names cannot be used"),
        ("a\nb.json", "such names cannot be used"),
        ("\udcff.json", "such names cannot be used"),
    ],
)
def test_the_rest_is_left_out_with_a_note(name: str, why: str) -> None:
    choice = choose(files(*ONE, "config.json", name), "here")
    assert [file.name for file in choice.small] == ["config.json"]
    assert len(choice.notes) == 1 and why in choice.notes[0] and choice.notes[0].startswith("left out: ")
    assert choice.notes[0].isascii() and choice.notes[0].isprintable()


def test_a_small_file_that_is_large_is_left_out() -> None:
    choice = choose([*files(*ONE), SourceFile("data.json", MAX_SMALL_BYTES + 1, "s")], "here")
    assert choice.small == () and "larger than 64 MiB" in choice.notes[0]


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "other.safetensors.index.json"])
@pytest.mark.parametrize("size", [MAX_SMALL_BYTES + 1, 1 << 62])
def test_an_index_of_a_length_that_cannot_be_is_refused_before_it_is_read(name: str, size: int) -> None:
    with pytest.raises(Refused, match=f"here/{name} is said to have {size} bytes"):
        choose([*files(*ONE), SourceFile(name, size, "s")], "here")


def test_notes_name_a_few_and_count_the_rest() -> None:
    (note,) = choose(files(*ONE, *(f"{n}.py" for n in range(9))), "here").notes
    assert "0.py, 1.py, 2.py, 3.py, 4.py and 4 more" in note


def test_an_index_says_which_shards_there_are() -> None:
    choice = choose(files("a.safetensors", "b.safetensors", "model.safetensors.index.json"), "here")
    assert choice.index is not None and choice.single is None
    assert [file.name for file in choice.small] == ["model.safetensors.index.json"]
    other = choose(files("a.safetensors", "fp8.safetensors.index.json"), "here")
    assert other.index is not None and other.index.name == "fp8.safetensors.index.json"
    both = choose(files("a.safetensors", "x.safetensors.index.json", "model.safetensors.index.json"), "here")
    assert both.index is not None and both.index.name == "model.safetensors.index.json"


def test_without_an_index_there_is_one_file() -> None:
    for names in (["model.safetensors", "other.safetensors"], ["adapter_model.safetensors"]):
        single = choose(files(*names), "here").single
        assert single is not None and single.name == names[0]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "has no safetensors files"),
        (["config.json"], "has no safetensors files$"),
        (["config.json", "sub/model.safetensors"], "there are some below it.*name that directory"),
        (
            ["a.safetensors", "b.safetensors"],
            "2 safetensors files .a.safetensors, b.safetensors. and no model.saf.*index",
        ),
        (["x.safetensors.index.json", "y.safetensors.index.json"], "several indexes"),
        (["pytorch_model.bin"], "pytorch_model.bin.*Convert it once.*save_file"),
        (["model.pt", "config.json"], "Convert it once"),
        (["consolidated.00.pth"], "Convert it once"),
        (["epoch.ckpt"], "Convert it once"),
    ],
)
def test_what_has_no_weights_that_can_be_taken_is_refused(names: list[str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        choose(files(*names), "here")


def test_a_directory_of_other_things_is_refused() -> None:
    with pytest.raises(Refused, match="2001 small files"):
        choose(files(*ONE, *(f"{n}.json" for n in range(2001))), "here")


def test_weights_that_are_not_taken_are_told() -> None:
    assert left_out(files("a.safetensors", "b.safetensors"), ["a.safetensors"]) == [
        "left out: b.safetensors (not among the weights of this model)"
    ]
    assert left_out(files("a.safetensors"), ["a.safetensors"]) == []
