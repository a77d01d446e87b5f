"""A file that another system left in the store, as Windows' Explorer does on SMB shares, stops no command."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from ebbtide.cli.main import cli


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="whatever lies among the refs is read as one")
@pytest.mark.parametrize("command", ["list", "verify --all", "gc --grace 0"])
def test_a_stray_file_among_the_refs_stops_no_command(command: str, tmp_path: Path) -> None:
    source, shared = tmp_path / "source", tmp_path / "shared"
    source.mkdir()
    shared.mkdir()
    save_file({"w": np.ones(4, np.float32)}, source / "model.safetensors")
    (source / "config.json").write_text("{}")

    def run(*words: str) -> None:
        done = CliRunner().invoke(cli, ["models", *words, "--shared-dir", str(shared)])
        assert done.exit_code == 0, done.output

    run("import", str(source), "--name", "mine")
    (shared / "store" / "refs" / "Thumbs.db").write_bytes(b"x")
    run(*command.split())
