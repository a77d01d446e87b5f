"""The example job: its data, its model, and that it learns, parks and goes on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.client.messages import DesiredState
from ebbtide_train.examples.stdlib_lm.data import load_windows
from ebbtide_train.examples.stdlib_lm.model import LanguageModel, ModelShape
from ebbtide_train.examples.stdlib_lm.tokenizer import load_tokenizer, source_files
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.step_log import step_lines
from tests.train_jobs import gangs

SMALL = {"vocab_size": 400, "seq_len": 16, "limit_bytes": 60_000, "width": 16, "heads": 2, "layers": 1, "hidden": 32}


def test_the_tokenizer_is_the_same_each_time_and_loses_no_byte(tmp_path: Path) -> None:
    files = source_files(60_000)
    assert files == sorted(files)
    first, key = load_tokenizer(tmp_path / "a", files=files, vocab_size=400)
    second, same_key = load_tokenizer(tmp_path / "b", files=files, vocab_size=400)
    assert key == same_key
    assert first.to_str() == second.to_str()
    text = "def naïve(x):\n\treturn x  # π\n"
    assert first.decode(first.encode(text).ids) == text


def test_windows_hold_the_next_token_as_target_and_are_cached(tmp_path: Path) -> None:
    windows = load_windows(tmp_path, vocab_size=400, seq_len=16, limit_bytes=60_000)
    x, y = windows[3]
    assert torch.equal(x[1:], y[:-1])
    assert windows[4][0][0] == y[-1]
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(load_windows(tmp_path, vocab_size=400, seq_len=16, limit_bytes=60_000)) == len(windows) > 100
    assert stamps == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_the_model_sees_no_future_token() -> None:
    torch.manual_seed(0)
    model = LanguageModel(ModelShape(vocab_size=50, width=16, layers=2, heads=2, hidden=32))
    tokens = torch.randint(0, 50, (1, 10))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 50
    here, there = model(tokens), model(changed)
    assert torch.equal(here[0, :7], there[0, :7])
    assert not torch.equal(here[0, 7:], there[0, 7:])


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="even multiple"):
        ModelShape(width=30, heads=4)


def test_it_learns_and_steps_aside(tmp_path: Path) -> None:
    args: dict[str, Any] = {**SMALL, "cache_dir": str(tmp_path / "cache"), "lr": 1e-2, "warmup_steps": 2}
    plan = gangs.plan_of(tmp_path / "job", world=2, steps=20, train="ebbtide_train.examples.stdlib_lm:train", **args)
    gangs.run(plan, {4: Away(), 7: DesiredState.STOP})
    gangs.run(gangs.stopping(plan, epoch=5))
    losses = [float.fromhex(line.loss) for line in sorted(step_lines(tmp_path / "job"), key=lambda line: line.step)]
    assert len(losses) == 40
    assert sum(losses[-8:]) < sum(losses[:8]) - 8 * 0.5


def test_without_its_library_the_example_says_what_to_install() -> None:
    code = "import sys; sys.modules['tokenizers'] = None; import ebbtide_train.examples.stdlib_lm.tokenizer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'ebbtide[examples]'" in done.stderr
