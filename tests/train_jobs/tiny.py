"""A job small enough to run dozens of gangs in a test: dropout, uneven layers, tied weights, AdamW, cosine."""

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

import ebbtide_train


class Numbers:
    """97 samples (a prime: epochs end inside a step)."""

    def __len__(self) -> int:
        return 97

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randint(0, 50, (12,), generator=generator)
        return x[:-1], x[1:]


class Net(nn.Module):
    """Next-number model; the output weights are the embedding's."""

    calls: torch.Tensor

    def __init__(self, *, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        self.calls.add_(1)
        for layer in self.hidden:
            h = h + self.dropout(torch.tanh(layer(h)))
        out: torch.Tensor = self.head(h)
        return out


def loss_of(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def build(args: Mapping[str, object]):  # type: ignore[no-untyped-def]
    model = Net(width=int(str(args.get("width", 32))), dropout=float(str(args.get("dropout", 0.0))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    return model, optimizer, scheduler, Numbers(), loss_of


def digest(model: nn.Module) -> str:
    """Hashes of all parameters and of all buffers, bit for bit; buffers count batches, so ranks differ in them."""
    hashes = []
    for tensors in (model.parameters(), model.buffers()):
        sha = hashlib.sha256()
        for tensor in tensors:
            sha.update(tensor.detach().contiguous().numpy().tobytes())
        hashes.append(sha.hexdigest())
    return " ".join(hashes)


def train(args: Mapping[str, object]) -> None:
    session = ebbtide_train.current_session()
    model, optimizer, scheduler, dataset, loss_fn = build(args)
    model = session.prepare(model, optimizer, scheduler)
    for step in session.steps(total=int(str(args["steps"]))):
        for batch in step.batches(dataset):
            step.backward(loss_fn(model(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=not args.get("keep_grads"))
    (session.settings.run_dir / f"digest-{session.rank}").write_text(digest(model.module))


def train_dies(args: Mapping[str, object]) -> None:
    """Fails after the restore, before the first step."""
    session = ebbtide_train.current_session()
    model, optimizer, scheduler, _, _ = build(args)
    session.prepare(model, optimizer, scheduler)
    raise RuntimeError("as the test wants it")
