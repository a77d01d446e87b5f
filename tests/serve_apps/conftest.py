"""What several tests of the serving room share."""

from pathlib import Path

import pytest

from ebbtide_serve.examples.tiny_model import make_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real model's directory."""
    out = tmp_path_factory.mktemp("models") / "tiny"
    make_model(out)
    return out
