"""Headers of safetensors files that the reference implementation reads are read."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from ebbtide.storage.errors import Corrupt
from ebbtide.storage.safetensors.file_header import read_header

TENSOR: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HEADERS: dict[str, Any] = {
    "metadata null": {"__metadata__": None, "w": TENSOR},
    "a further key": {"w": {**TENSOR, "comment": "x"}},
}


@pytest.mark.xfail(strict=True, raises=Corrupt, reason="the header is read more strictly than the reference does")
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_what_the_reference_reads_is_read(header: dict[str, Any], tmp_path: Path) -> None:
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 16)
    with safe_open(path, "np") as file:
        reference = list(file.keys())
    assert [entry.name for entry in read_header(path).entries] == reference
