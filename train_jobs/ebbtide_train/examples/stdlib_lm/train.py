"""The job itself: an ordinary PyTorch loop, and three lines that let it step aside and lose nothing."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

import ebbtide_train
from ebbtide_train.examples.stdlib_lm.data import TokenWindows, load_windows
from ebbtide_train.examples.stdlib_lm.model import LanguageModel, ModelShape


class Parts(NamedTuple):
    """What a training loop needs."""

    model: LanguageModel
    optimizer: torch.optim.AdamW
    scheduler: torch.optim.lr_scheduler.LambdaLR
    dataset: TokenWindows
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build(args: Mapping[str, object]) -> Parts:
    """Model, optimizer, scheduler, data and loss.

    Args (all optional): vocab_size, width, layers, heads, hidden, dropout, seq_len, limit_bytes (of source text), lr,
    warmup_steps, decay_steps (of the schedule), cache_dir (of tokenizer and tokens).
    """
    shape = ModelShape(
        vocab_size=_int(args, "vocab_size", 4096),
        width=_int(args, "width", 160),
        layers=_int(args, "layers", 4),
        heads=_int(args, "heads", 5),
        hidden=_int(args, "hidden", 448),
        dropout=_float(args, "dropout", 0.0),
    )
    default_cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ebbtide" / "stdlib_lm"
    dataset = load_windows(
        Path(str(args.get("cache_dir") or default_cache)),
        vocab_size=shape.vocab_size,
        seq_len=_int(args, "seq_len", 64),
        limit_bytes=_int(args, "limit_bytes", 4_000_000),  # a third of it all: tokenized in seconds, 16 000 samples
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LanguageModel(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_float(args, "lr", 1e-3), weight_decay=0.1)
    warmup, decay = _int(args, "warmup_steps", 20), _int(args, "decay_steps", 1000)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, warmup, decay))
    return Parts(model, optimizer, scheduler, dataset, _loss_of)


def train(args: Mapping[str, object]) -> None:
    """Train for ``args["steps"]`` steps (default 200); further arguments as in `build`."""
    session = ebbtide_train.current_session()  # 1
    if session.device.type == "cpu":
        torch.set_num_threads(1)  # ranks share the cores, and one thread has one order of summation
    plain, optimizer, scheduler, dataset, loss_of = build(args)
    model = session.prepare(plain, optimizer, scheduler)  # 2
    for step in session.steps(total=_int(args, "steps", 200)):  # 3
        for batch in step.batches(dataset):
            step.backward(loss_of(model(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


def _loss_of(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def _lr_factor(step: int, warmup: int, decay: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, decay - warmup))
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * done))


def _int(args: Mapping[str, object], name: str, default: int) -> int:
    return int(str(args.get(name, default)))


def _float(args: Mapping[str, object], name: str, default: float) -> float:
    return float(str(args.get(name, default)))
