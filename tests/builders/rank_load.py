"""Loads of weights by a rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.storage.names import ObjectId
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.flat.capture_state import CaptureState
from ebbtide_serve.loading.flat.identity import EngineFacts
from ebbtide_serve.loading.rank_load import FLAT, RankLoad, Ways
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.settings import LoadSettings
from ebbtide_serve.loading.start_record import OWN, StartRecord
from tests.serve_apps.loading.small_model import (
    SmallModel,
    facts,
    load_small,
    right,
    same,
)


@dataclass
class Rank:
    """One rank of an engine with a `SmallModel`."""

    store: ProcessStore
    wanted: ObjectId
    tp: int = 1
    rank: int = 0
    model: SmallModel = field(init=False)
    record: StartRecord = field(default_factory=StartRecord)
    held: CaptureState = field(default_factory=CaptureState)
    said: list[str] = field(default_factory=list)
    told: EngineFacts | None = None

    def load(self, asked: str = FLAT, *, capture: bool = True, own: bool = False) -> "Rank":
        self.model = SmallModel(self.tp, self.rank)
        return self.reload(asked, capture=capture, own=own)

    def reload(self, asked: str = FLAT, *, capture: bool = True, own: bool = False, loaders: int = 0) -> "Rank":
        settings = LoadSettings(self.store.store.paths.root, self.wanted, capture, loaders)

        def checkpoint() -> tuple[str, TransferReport | None]:
            way, report = load_small(self.store, self.wanted, self.model)
            return (OWN, None) if own else (way, report)

        ways = Ways(self.told or facts(self.tp, self.rank), checkpoint, ranks_here=self.tp)
        load = RankLoad(settings, self.store, record=self.record, held=self.held, say=self.said.append)
        load.load(self.model, asked, ways)
        assert same(self.model, right(self.tp, self.rank))
        return self


def call_to(ranks: list[Rank]) -> Callable[..., list[Any]]:
    def call(method: str, *args: Any) -> list[Any]:
        acts: dict[str, Callable[..., Any]] = {
            "ebbtide_flat_state": CaptureState.state,
            "ebbtide_flat_stage": CaptureState.begin,
            "ebbtide_flat_drop": CaptureState.drop,
        }
        return [acts[method](one.held, *args) for one in ranks]

    return call
