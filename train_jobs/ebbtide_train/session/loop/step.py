"""One turn of the training loop: this rank's samples in micro batches, and backward with the right weights.

The loss of a step is the mean over the global batch. A rank with ``n`` of ``G`` samples in a micro batch scales that
micro batch's mean loss by ``n * world / G``; DDP then takes the mean over ranks, and the sum of all is exact also
when the shares differ. Only the last micro batch reduces gradients over the ranks.

Not guaranteed: the right mean for losses that are not means over samples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate

from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.session.loop.samples import micro_batches, sample_ids
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper


class Dataset(Protocol):
    """Samples by number; each a tensor or a tuple of tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro batch on the session's device."""

    tensors: tuple[torch.Tensor, ...]
    ids: tuple[int, ...]

    @property
    def x(self) -> torch.Tensor:
        """The first tensor of the samples: the input."""
        return self.tensors[0]

    @property
    def y(self) -> torch.Tensor:
        """The second tensor of the samples: the target."""
        return self.tensors[1]


class Step:
    """Step ``index`` (from 0) as this rank runs it."""

    def __init__(
        self,
        index: int,
        settings: SessionSettings,
        prepared: DdpWrapper,
        device: torch.device,
        on_gradients: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_gradients`` is called when this rank's last backward of the step has run."""
        self.index = index
        self._settings = settings
        self._prepared = prepared
        self._device = device
        self._on_gradients = on_gradients
        self._open: int | None = None  # samples of the micro batch whose backward has not run
        self._last = False  # whether that is the step's last one
        self._loss_sum = 0.0
        self._samples: list[int] = []
        self.dataset_len = 0

    def batches(self, dataset: Dataset) -> Iterator[Batch]:
        """This rank's share of the step's samples; call `backward` once for each.

        Raises:
            SessionMisuse: a micro batch got no backward, or batches are asked for twice.
        """
        if self.dataset_len:  # guard: a loop takes the samples of a step once
            raise SessionMisuse(f"step {self.index}: its samples were taken already; call step.batches() once a step")
        settings = self._settings
        self.dataset_len = len(dataset)
        mine = sample_ids(
            self.index,
            seed=settings.seed,
            length=self.dataset_len,
            global_batch=settings.global_batch,
            rank=settings.rank,
            world=settings.world,
        )
        # FSDP gathers parameters in each pass, so all ranks need as many passes as the one with the largest share. A
        # rank with fewer samples than that runs its last one again, which then counts nothing.
        largest = -(-settings.global_batch // settings.world) if self._prepared.split else len(mine)
        parts = micro_batches(mine, at_most=settings.micro_batch_max, count=largest)
        for number, ids in enumerate(parts):
            self._must_be_closed()
            self._open = len(ids)
            self._samples += ids
            self._last = number == len(parts) - 1
            self._prepared.sync_next_backward(self._last)
            yield Batch(self._collate([dataset[index] for index in ids or mine[-1:]]), tuple(ids))
        self._must_be_closed()

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of one micro batch; ``loss`` is the mean over its samples.

        Raises:
            SessionMisuse: there is no open micro batch.
        """
        if self._open is None:
            raise SessionMisuse(
                f"step {self.index}: backward() without a batch; call it once for each of step.batches()"
            )
        count, self._open = self._open, None
        settings = self._settings
        self._loss_sum += loss.item() * count
        weight = count * settings.world / settings.global_batch
        (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]
        if self._last:
            self._on_gradients()

    def finish(self) -> tuple[float, Sequence[int]]:
        """This rank's mean loss and its samples, once the turn is over."""
        if not self._samples:  # guard: a loop takes samples in each step
            raise SessionMisuse(f"step {self.index} took no samples: loop over step.batches(dataset) in each step")
        self._must_be_closed()  # guard: a loop brings each batch back
        return self._loss_sum / len(self._samples), self._samples

    def _must_be_closed(self) -> None:
        if self._open is not None:
            raise SessionMisuse(f"step {self.index}: a batch got no step.backward(loss); its samples would be lost")

    def _collate(self, samples: list[Any]) -> tuple[torch.Tensor, ...]:
        collated = default_collate(samples)
        tensors = collated if isinstance(collated, list | tuple) else (collated,)
        return tuple(tensor.to(self._device) for tensor in tensors)
