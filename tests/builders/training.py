"""Jobs that train, crash and go on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ebbtide.client.messages import RankReport
from ebbtide.snapshot.regions.region_view import RegionView
from ebbtide.storage.checkpoints.state.plain_state import pack
from ebbtide_train.session.parking.leftover_regions import Left, Taken


def once_durable(report: RankReport) -> bool:
    """Stay parked until the spill is committed."""
    return report.durable_step == report.step


SETTINGS = json.dumps({"workers": [1, 3], "global_batch": 6, "micro_batch": 2, "checkpoint_every_s": 3600})


class Holder:
    """Gives what it holds, and not a copy."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state.update(state_dict)


class Nodes:
    """Nodes with what is on them, and what becomes of it, each outcome once."""

    def __init__(self, left: dict[str, Sequence[RegionView] | None], *outcomes: Taken) -> None:
        self.left, self.outcomes = left, list(outcomes)
        self.settled: list[tuple[str, int]] = []

    def nodes(self, known: Sequence[str]) -> Sequence[str]:
        return [node for node in known if node in self.left]

    def look(self, node: str) -> Sequence[Left] | None:
        there = self.left[node]
        return None if there is None else [Left(node, one) for one in there]

    def publish(self, left: Left, run_dir: Path, *, keep: int) -> Taken:
        return self.outcomes.pop(0)

    def settle(self, node: str, job: str, lease_epoch: int) -> None:
        self.settled.append((node, lease_epoch))


def parameters(state: Mapping[str, object]) -> torch.Tensor:
    tensors: dict[str, torch.Tensor] = {}
    pack(state["model"], "model", tensors)
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])
