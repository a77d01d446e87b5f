"""What a replica prepares, serves and loads."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.messages import ReplicaOrders, ReplicaReport
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.safetensors.file_header import Header, parse_header
from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, from_buffers, plan_container
from ebbtide.system.process import started_ticks
from ebbtide_serve.replica.preparation import STORE, LoadOptions, Preparation, Wish
from tests.platform.storage.stores import store_at
from tests.serve_apps.loading.small_model import SHARDS, checkpoint_tensors, publish_tensors


class Arbiter:
    """Takes reports and gives orders."""

    def __init__(self) -> None:
        self.reports: list[ReplicaReport] = []
        self.orders: ReplicaOrders | None = ReplicaOrders()

    async def report_replica(self, report: ReplicaReport) -> ReplicaOrders | None:
        self.reports.append(report)
        return self.orders

    @property
    def last(self) -> ReplicaReport:
        return self.reports[-1]


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a preparation changes is put back."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = store_at(tmp_path / "shared" / STORE)
    found = publish_tensors(store, {SHARDS[0]: checkpoint_tensors()})
    store.refs.write("org/small", "latest", found)
    return store


MODEL = "org/small:latest"


def preparation(tmp_path: Path, model: str = MODEL, **options: Any) -> Preparation:
    started = started_ticks(os.getpid())
    assert started is not None
    wish = Wish(
        name="small",
        model=model,
        options=LoadOptions(**options),
        args={"max_model_len": 64},
        shared_dir=tmp_path / "shared",
        cache_dir=tmp_path / "cache",
    )
    return Preparation(wish, pid=os.getpid(), started=started, environment={"VLLM_X": "1"})


async def prepared(tmp_path: Path, model: str = MODEL, **options: Any) -> tuple[Preparation, list[str]]:
    made, stages = preparation(tmp_path, model, **options), list[str]()
    await made.prepare(stages.append)
    return made, stages


TREE = {
    "vllm/modelinfos/a-b.json": b"{}",
    "vllm/torch_compile_cache/torch_aot_compile/ff/inductor_cache/fxgraph/jr/key/name": os.urandom(5000),
    "triton/KEY=/.hidden": b"x" * 4096,
    "empty": b"",
}


def write(root: Path, tree: dict[str, bytes]) -> None:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def made(tree: dict[str, bytes]) -> tuple[Header, memoryview]:
    """A bundle with any names."""
    plan = plan_container(TensorSpec(name, "U8", (len(data),)) for name, data in tree.items())
    content = memoryview(bytearray(plan.file_bytes))
    filling(plan, from_buffers({name: memoryview(data) for name, data in tree.items()}))(0, content)
    return parse_header(bytes(content[: len(plan.header)]), plan.file_bytes, Path("made")), content
