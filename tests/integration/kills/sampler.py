"""One sample of everything that might grow: memory and descriptors per process, files, bytes."""

import csv
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.integration.kills.cluster import Process
from tests.integration.kills.descriptors import connections, to_the_living
from tests.integration.kills.growth import Sample
from tests.integration.kills.pool import Pool

ROLES: Mapping[str, Callable[[Process], bool]] = {
    "arbiter": lambda one: one.title.startswith("ray::Arbiter"),
    "gateway": lambda one: "ServeReplica:ebbtide-gateway" in one.title,
    "replica": lambda one: "ServeReplica:seat-" in one.title,
    "engine": lambda one: "process_child" in one.title,
    "agent": lambda one: one.title.startswith("ray::NodeAgent"),
    "train_controller": lambda one: one.title.startswith("ray::GangController"),
    "worker": lambda one: one.title.startswith("ray::RayTrainWorker"),
    "driver": lambda one: "ebbtide_train.run" in one.command,
    "serve_controller": lambda one: one.title.startswith("ray::ServeController"),
    "raylet": lambda one: bool(one.command) and Path(one.command[0]).name == "raylet",
    "gcs": lambda one: bool(one.command) and Path(one.command[0]).name == "gcs_server",
}
"""Which processes are sampled, by how they are known."""


@dataclass
class Sampler:
    """Takes samples of one pool, from a thread and between the rounds."""

    pool: Pool
    samples: list[Sample] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def sample(self) -> None:
        """Take one of everything."""
        at_min = (time.monotonic() - self._began_s) / 60.0
        self.samples += [Sample(at_min, series, instance, value) for series, instance, value in self._all()]

    def at_rest(self) -> None:
        """Count processes; only while everything has come back and no replica is up, since the number is the same
        then. Between kills it is 23 to 34, which hides a growth of 4 an hour."""
        at_min = (time.monotonic() - self._began_s) / 60.0
        self.samples.append(Sample(at_min, "processes", "", float(len(self.pool.cluster.processes()))))

    def _all(self) -> Iterator[tuple[str, str, float]]:
        shared_ends = to_the_living(connections())
        for one in self.pool.cluster.processes():
            role = next((name for name, fits in ROLES.items() if fits(one)), None)
            if role is None:
                continue
            instance = f"{one.pid}-{one.started}"
            with suppress(psutil.Error, OSError):
                seen = psutil.Process(one.pid)
                yield f"rss_mb:{role}", instance, seen.memory_info().rss / 2**20
                yield f"fds:{role}", instance, float(seen.num_fds() - shared_ends.get(one.pid, 0))
        shared = self.pool.shared
        yield "ledger_mb", "", folder_bytes(shared / "ledger") / 2**20
        yield "checkpoints_mb", "", sum(folder_bytes(path) for path in checkpoint_folders(shared)) / 2**20
        yield "shared_mb", "", folder_bytes(shared) / 2**20
        yield "session_mb", "", folder_bytes(self.pool.cluster.temp_dir) / 2**20
        yield "runtime_files", "", float(files_in(self.pool.lock_dir.parent))
        yield "tmp_files", "", float(sum(name.startswith("ebbtide") for name in os.listdir(tempfile.gettempdir())))


def save(samples: Sequence[Sample], path: Path) -> None:
    """As a table, so that a run can be looked at, and judged again, when it is over."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("at_min", "series", "instance", "value"))
        table.writerows((f"{one.at_min:.3f}", one.series, one.instance, f"{one.value:.3f}") for one in samples)


def checkpoint_folders(shared: Path) -> list[Path]:
    """Where jobs publish: everything below ``train`` but the evidence."""
    return [
        path for job in (shared / "train").glob("*") for path in job.glob("*") if path.is_dir() and path.name != "steps"
    ]


def folder_bytes(folder: Path) -> int:
    """Bytes of all plain files below; what vanishes meanwhile counts as nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def files_in(folder: Path) -> int:
    """How many entries a folder has, with all below it."""
    return sum(len(names) + len(inner) for _, inner, names in os.walk(folder))
