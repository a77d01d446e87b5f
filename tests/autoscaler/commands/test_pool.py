"""Reading a pool file for `up` and `plan`: what only an imported model tells is said before anything starts."""

import json
from pathlib import Path

import pytest

from ebbtide.cli.commands import hub_imports
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import LoadedFile
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.names import object_id
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide_autoscaler.commands.pool import read_pool_file

TEXT = """\
pool: {name: demo, slots: 1, shared_dir: shared}
endpoints:
  - {name: chat, model: "hf://org/tiny", engine: {max_model_len: TOKENS}}
"""


@pytest.mark.parametrize(("tokens", "refused"), [(9000, True), (2048, False)])
def test_a_model_that_was_imported_is_looked_at_like_one_that_was_there(
    tokens: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    file = tmp_path / "pool.yaml"
    file.write_text(TEXT.replace("TOKENS", str(tokens)))

    def bring_in(loaded: LoadedFile, *, quiet: bool) -> None:
        paths, stored = StorePaths(shared / "store"), object_id("a" * 64)
        paths.object(stored).mkdir(parents=True)
        config = {"model_type": "llama", "max_position_embeddings": 2048}
        (paths.object(stored) / "config.json").write_text(json.dumps(config))
        Refs(paths, Disk()).write("org/tiny", "latest", stored)

    monkeypatch.setattr(hub_imports, "bring_in", bring_in)
    if not refused:
        assert read_pool_file(file, import_models=True).endpoints[0].name == "chat"
        return
    with pytest.raises(ConfigErrors) as caught:
        read_pool_file(file, import_models=True)
    (problem,) = caught.value.problems
    assert problem.path == "endpoints[0].engine.max_model_len" and "at most 2048" in problem.message
