"""A valid file that names one of everything, for tests to break."""

from pathlib import Path

import pytest

VALID_TEXT = """\
pool:
  name: demo
  slots: 3
  shared_dir: shared
endpoints:
  - name: tiny
    model: models/tiny
    replicas: {min: 0, max: 2}
    engine:
      max_model_len: 1024
jobs:
  - name: lm
    entrypoint: train:main
    working_dir: code
    workers: {min: 1, max: 3}
    global_batch: 12
    micro_batch: 4
keys:
  - name: users
    secret: {file: users.key}
    endpoints: [tiny]
"""


@pytest.fixture
def valid_text() -> str:
    return VALID_TEXT


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A directory in which the valid file and all that it names are there; returns the file."""
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(64))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import torch_is_not_needed\n\ndef main(session, args): ...\n")
    (tmp_path / "users.key").write_text("k" * 32 + "\n")
    file = tmp_path / "pool.yaml"
    file.write_text(VALID_TEXT)
    return file
