"""The state that is moved: a model and its AdamW, of a wanted size to the byte or nearly, and its training step.

Every step draws its tokens and its dropout by its own number, so that the loss of a step depends on the state alone,
whoever drives the loop.
"""

from collections.abc import Iterator

import torch
from torch import nn

COPIES = 3  # a parameter and AdamW's two moments
FLOAT_BYTES = 4
STEPS_BEFORE = 2  # the second one is when the decision comes; the optimizer has its state since the first
LAST_STEP = STEPS_BEFORE  # the step whose loss is compared


class Block(nn.Module):
    """Linear layers of a transformer's shapes: ``12 * hidden ** 2`` weights and some small vectors."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: [tokens, hidden]."""
        query, key, value, out = self.mix
        mixed = out(torch.tanh(query(x)) * key(x) + value(x))
        found: torch.Tensor = x + self.dropout(self.down(torch.relu(self.up(self.norm(mixed)))))
        return found


class Model(nn.Module):
    """As many blocks as fit, and an embedding that makes up the rest."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        # Widths of models of such sizes; a block is at most an eighth of the whole, so that small states have several.
        wide = [width for width in (2048, 1024, 512, 128) if _block_bytes(width) * 8 <= size_bytes]
        hidden = max(wide, default=32)
        blocks = max(1, int(size_bytes * 0.9) // _block_bytes(hidden))
        rest = size_bytes - blocks * _block_bytes(hidden)
        self.embedding = nn.Embedding(max(2, rest // (COPIES * FLOAT_BYTES * hidden)), hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(blocks))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens``: [tokens]; gives [tokens, hidden]."""
        x: torch.Tensor = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def make(size_bytes: int, *, empty: bool = False) -> tuple[Model, torch.optim.AdamW]:
    """The model and its optimizer, which has no state before the first step.

    Args:
        size_bytes: of parameters and both moments together.
        empty: nobody sets the parameters, since they are loaded next.
    """
    with torch.device("meta"):
        model = Model(size_bytes)
    model.to_empty(device="cpu")
    if not empty:
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(1.0) if name.endswith("norm.weight") else parameter.uniform_(-0.02, 0.02)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def loss_of(model: nn.Module, number: int, words: int) -> torch.Tensor:
    """The forward pass of step ``number`` with ``words`` words in the embedding."""
    torch.manual_seed(number)
    tokens = torch.randint(words, (8,)).to(next(model.parameters()).device)
    out: torch.Tensor = model(tokens)
    return out.square().mean()


def plain_step(model: Model, optimizer: torch.optim.Optimizer, number: int) -> str:
    """One step of an ordinary loop; its loss as hex."""
    loss = loss_of(model, number, model.embedding.num_embeddings)
    finish(loss, optimizer)
    return float(loss.item()).hex()


def finish(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """The rest of an ordinary loop's step."""
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """All of the state by name: what is tracked, and what others save."""
    for name, parameter in model.named_parameters():
        yield f"model.{name}", parameter.detach()
        for key, value in optimizer.state[parameter].items():
            yield f"optimizer.{name}.{key}", value


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Of all tensors; none shares memory with another."""
    return sum(tensor.nbytes for _, tensor in tensors(model, optimizer))


def prepare_process(threads: int) -> None:
    """The same arithmetic in every contender; a session asks for deterministic algorithms by itself."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # it would write into what is loaded next


def _block_bytes(hidden: int) -> int:
    return COPIES * FLOAT_BYTES * (12 * hidden**2 + 2 * hidden)
