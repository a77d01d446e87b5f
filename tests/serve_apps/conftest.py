"""What several tests of the serving room share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model's directory, made once for all workers of xdist: to train its tokenizer takes seconds."""
    from ebbtide_serve.examples.tiny_model import make_model  # transformers take seconds

    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models" / "tiny"
    make_model(out)
    return out
