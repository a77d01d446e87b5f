"""What a session looks after: the model, its optimizer, its scheduler, and whatever else the author registers.

Two views: every tensor, to evict it, and a portable state, to store it. Optimizer state is named by parameter, not by
number, so that it does not depend on the order in which an author lists parameters.

After loading, optimizer tensors own memory that can be resized: ``load_state_dict`` of an optimizer keeps the tensors
it was given, and one that came from a file could never be evicted. (A model copies into its own parameters. If those
came from a file, the author must clone them: only the author knows which of them are tied.)
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ebbtide.snapshot.eviction.tensor_eviction import tensors_in
from ebbtide_train.session.errors import BEGIN_ANEW, CheckpointMismatch, SessionMisuse
from ebbtide_train.session.state.tensor_shards import Layout, is_split, layouts


class Stateful(Protocol):
    """Anything that can say and take back its state."""

    def state_dict(self) -> dict[str, Any]:
        """Nested tensors and plain data."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take it back."""


class TrainState:
    """The objects of one rank's training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | None,
        extras: Mapping[str, Stateful],
    ) -> None:
        """Raises SessionMisuse if the optimizer has parameters that the model has not, or nobody can keep the model."""
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.extras = dict(extras)
        self.split = is_split(model)  # over the ranks, so that no rank holds all of it
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in self._names:  # guard: an optimizer of another model is refused
                    raise SessionMisuse(
                        f"parameter group {index} of the optimizer has a parameter of shape {tuple(parameter.shape)} "
                        "that is not the model's; "
                        "make the optimizer from the parameters of the model given to prepare()"
                    )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that lives between steps, with its name; a shared one may come more than once."""
        yield from ((f"parameter {name}", parameter) for name, parameter in self.model.named_parameters())
        yield from ((f"buffer {name}", buffer) for name, buffer in self.model.named_buffers())
        for parameter, state in self.optimizer.state.items():
            yield from tensors_in(f"optimizer state of {self._names[id(parameter)]}", state)
        for index, group in enumerate(self.optimizer.param_groups):
            values = {key: value for key, value in group.items() if key != "params"}
            yield from tensors_in(f"optimizer group {index}", values)
        for name, extra in self.extras.items():
            yield from tensors_in(f"{name}", extra.state_dict())

    def layouts(self, world: int) -> dict[str, Layout]:
        """Of the tensors that are split, by their names in a checkpoint."""
        return layouts(self.state(), world=world)

    def size_bytes(self) -> int:
        """Of all tracked tensors on this rank, a shared storage once, of a sharded tensor what lies here."""
        storages = (tensor.untyped_storage() for _, outer in self.tensors() for tensor in _plain(outer))
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def state(self) -> dict[str, object]:
        """The portable state. Its tensors are those that are tracked; all else in it is as of now, and stays so."""
        state: dict[str, object] = {
            "model": self.model.state_dict(),
            "optimizer": {
                "state": {self._names[id(p)]: dict(values) for p, values in self.optimizer.state.items()},
                "groups": [
                    {key: self._parameter_names(value) if key == "params" else value for key, value in group.items()}
                    for group in self.optimizer.param_groups
                ],
            },
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "extras": {name: extra.state_dict() for name, extra in self.extras.items()},
        }
        return map_tensors(state, lambda tensor: tensor)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave.

        Raises:
            CheckpointMismatch: it is of another model, optimizer or set of registered objects.
        """
        try:
            self.model.load_state_dict(state["model"])
            self._load_optimizer(state["optimizer"])
            # guard: a checkpoint of a loop with a scheduler fits no loop without one
            if (self.scheduler is None) != (state["scheduler"] is None):
                raise KeyError("scheduler")
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            for name, extra in self.extras.items():
                extra.load_state_dict(state["extras"][name])
        # Whatever an author's own class raises for a state of before: RuntimeError is torch's, the rest Python's.
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise CheckpointMismatch(
                f"the committed checkpoint does not fit this train function's model, optimizer or extras; {BEGIN_ANEW}."
                f" What differs: {error}"
            ) from error
        self._own_every_storage()

    def _parameter_names(self, parameters: list[torch.Tensor]) -> list[str]:
        return [self._names[id(parameter)] for parameter in parameters]

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        numbers: dict[str, int] = {}
        for group in self.optimizer.param_groups:
            for name in self._parameter_names(group["params"]):
                numbers[name] = len(numbers)
        here = [self._parameter_names(group["params"]) for group in self.optimizer.param_groups]
        there = [list(group["params"]) for group in state["groups"]]
        if here != there:  # guard: a checkpoint of other parameter groups is refused
            raise ValueError(f"the optimizer's parameter groups differ: {here} here, {there} in the checkpoint")
        self.optimizer.load_state_dict(
            {
                "state": {numbers[name]: values for name, values in state["state"].items()},
                "param_groups": [
                    {**group, "params": [numbers[name] for name in group["params"]]} for group in state["groups"]
                ],
            }
        )

    def _own_every_storage(self) -> None:
        for values in [*self.optimizer.state.values(), *self.optimizer.param_groups]:
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and not all(
                    one.untyped_storage().resizable() for one in _plain(value)
                ):
                    values[key] = value.clone()


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the bytes of one: those inside a DTensor or another wrapper, else itself."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for inner in (getattr(tensor, name) for name in names):
        if isinstance(inner, torch.Tensor):  # a DTensor names its mesh here, too
            yield from _plain(inner)


def map_tensors(state: Mapping[str, object], view: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, object]:
    """A state with every tensor replaced, and what else may change copied.

    Containers keep their types as far as a checkpoint tells them apart.
    """
    return {key: _mapped(value, view) for key, value in state.items()}


def _mapped(value: object, view: Callable[[torch.Tensor], torch.Tensor]) -> object:
    if isinstance(value, torch.Tensor):
        return view(value)
    if isinstance(value, list):
        return [_mapped(item, view) for item in value]
    if isinstance(value, tuple):
        return tuple(_mapped(item, view) for item in value)
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, Mapping):  # of any kind: `tensors_in` looks into all of them
        return {key: _mapped(item, view) for key, item in value.items()}
    # guard: arrays are copied into the state
    return value.copy() if isinstance(value, np.ndarray) else value
