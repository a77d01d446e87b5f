"""Pickle is refused by name and by content, and the sentence that says so helps."""

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.pickles import refuse_pickle


def zipped() -> bytes:
    target = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, target)
    return target.getvalue()


def empty_zip() -> bytes:
    target = io.BytesIO()
    zipfile.ZipFile(target, "w").close()
    return target.getvalue()


@pytest.mark.proves("a pickle is refused by its name")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "m.pt", "m.PTH", "m.ckpt", "x.pkl", "m.npz"])
def test_names_of_pickles_are_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"save_file.*weights_only=True"):
        refuse_pickle(Path(name), b"{}")


@pytest.mark.proves("a pickle is refused by its beginning")
@pytest.mark.parametrize(
    "content", [zipped(), empty_zip(), *(pickle.dumps({"a": 1}, protocol) for protocol in range(2, 6))]
)
def test_a_pickle_under_another_name_is_refused(content: bytes) -> None:
    with pytest.raises(Refused, match="whatever its name says"):
        refuse_pickle(Path("model.safetensors"), content[:9])


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80", b"PK", b"\x80\x00\x00\x00\x00\x00\x00\x00{"])
def test_others_pass(content: bytes) -> None:
    refuse_pickle(Path("model.safetensors"), content)
    refuse_pickle(Path("config.json"), content)


@pytest.mark.parametrize("first", [b"{", b" ", b"\n"])
@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580, 0x10280])
def test_a_safetensors_header_whose_length_looks_like_a_pickle_passes(length: int, first: bytes) -> None:
    refuse_pickle(Path("model.safetensors"), length.to_bytes(8, "little") + first)


def test_a_hostile_name_is_not_put_into_the_command_nor_raw_into_the_terminal() -> None:
    with pytest.raises(Refused) as refused:
        refuse_pickle(Path("a\x1b[2J').__import__('os').system('reboot').bin"), b"")
    assert "\x1b" not in str(refused.value)
    assert "reboot" not in str(refused.value).partition("python -c")[2]
