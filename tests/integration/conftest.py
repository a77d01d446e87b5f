"""A real pool for the tests of the whole line: `ebbtide up` with three logical slots, a tiny model, one at a time."""

import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner, Result

from ebbtide.agent.slot_locks.allocation_log import double_occupancy_s, read_occupancies
from ebbtide.cli.main import cli
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import join
from ebbtide.client.cluster_record import ClusterRecord, load_cluster
from ebbtide.pool.rules.promises import violations
from ebbtide_autoscaler.journal.records import recover

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "out" / "models" / "tiny"

CONFIG = """
pool: {{name: {name}, slots: 3, num_cpus: 16, shared_dir: shared, host_memory_per_node: 2 GiB}}
gateway: {{port: {port}}}
policy: {{park_first: true, restart_cost_s: 300, grow_after_s: 2, silence_s: 20}}
endpoints:
  - name: tiny
    model: {model}
    replicas: {{min: 0, max: 2}}
    idle_after_s: 3
    down_after_s: 2
    min_uptime_factor: 0.1
    slo: {{tpot_s: 1}}
    drain_s: 20
    engine:
      enforce_eager: true
      dtype: bfloat16
      max_model_len: 512
      max_num_seqs: 8
      max_num_batched_tokens: 512
      kv_cache_memory_bytes: 67108864
jobs:
  - name: from-file
    entrypoint: mytrain:train
    working_dir: .
    args: {{steps: 30}}
    workers: {{min: 1, max: 1}}
    global_batch: 6
    micro_batch: 6
    min_runtime_s: 0
    host_memory_per_worker: 64 MiB
"""

TRAIN = '''
"""A user's own training code: an ordinary PyTorch loop and three lines."""
import sys, time
import torch
import ebbtide_train


class Numbers:
    def __len__(self):
        return 600

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        x = torch.randn(16, generator=draw)
        return x, x.roll(1)


def train(args):
    session = ebbtide_train.current_session()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = session.prepare(model, optimizer)
    data = Numbers()
    for step in session.steps(total=args["steps"]):
        for batch in step.batches(data):
            step.backward(torch.nn.functional.mse_loss(model(batch.x), batch.y))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        time.sleep(args.get("pace_s", 0.0))


if __name__ == "__main__":
    from ebbtide_train.pool_trainer import PoolTrainer

    name, steps, least, most, pace_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    PoolTrainer(
        train,
        args={"steps": steps, "pace_s": float(pace_s)},
        name=name,
        workers=(least, most),
        global_batch=6,
        min_runtime_s=0,
        checkpoint_every_s=5,
        host_memory_per_worker=64 << 20,
    ).fit()
'''


@dataclass
class Pool:
    """The running pool as a test sees it."""

    record: ClusterRecord
    folder: Path

    @property
    def shared(self) -> Path:
        return Path(self.record.shared_dir)

    def ask(self, method: str, *args: object) -> Any:
        return ArbiterLink().call(method, *args, timeout_s=5.0)

    def status(self) -> dict[str, Any]:
        """Until the arbiter answers: it may have been killed a moment ago."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            found: dict[str, Any] | None = self.ask("status")
            if found is not None and "jobs" in found:
                return found
            time.sleep(0.1)
        raise AssertionError("the arbiter has not answered for 60 s")

    def job(self, name: str) -> dict[str, Any]:
        return next((job for job in self.status()["jobs"] if job["job"] == name), {"state": "unknown", "step": 0})

    def seats(self) -> list[dict[str, Any]]:
        return [seat for endpoint in self.status()["endpoints"] for seat in endpoint["seats"]]

    def wait(self, what: str, holds: Callable[[], bool], *, limit_s: float = 120.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {limit_s:g} s: {what}; {self.status()}"
            time.sleep(0.1)

    def drive(
        self, name: str, *, steps: int, workers: tuple[int, int], pace_s: float = 0.02
    ) -> "subprocess.Popen[str]":
        """Run a job's driver as a plain process."""
        arguments = [name, str(steps), str(workers[0]), str(workers[1]), str(pace_s)]
        log = (self.folder / f"{name}.log").open("w")
        return subprocess.Popen(
            [sys.executable, "mytrain.py", *arguments], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, text=True
        )

    def check_promises(self) -> None:
        """No GPU ever had two occupants, by the occupants' own logs; and the ledger's state breaks no promise."""
        assert double_occupancy_s(read_occupancies(self.shared / "occupancy")) == 0.0
        assert violations(recover(self.shared / "ledger").state) == []


def ebbtide(*arguments: str, timeout_s: float = 200.0, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run the command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "ebbtide.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert not check or done.returncode == 0, f"ebbtide {' '.join(arguments)} gave {done.returncode}:\n{done.stdout}"
    return done


def ebbtide_here(*arguments: str, check: bool = True) -> Result:
    """Run the command in this process, which has joined the cluster: some seconds less than a process of its own.

    Not for what is about another user's view of the cluster, or about a process that has not joined it.
    """
    done = CliRunner().invoke(cli, list(arguments), prog_name="ebbtide")
    told = f"ebbtide {' '.join(arguments)} gave {done.exit_code}:\n{done.output}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(told) from done.exception
    assert not check or done.exit_code == 0, told
    return done


def a_free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to no connection while a cluster is away.

    Below 32768 begins nobody's outgoing port (ip(7): ip_local_port_range), and above 20000 end Ray's workers' ports.
    """
    for port in random.SystemRandom().sample(range(20000, 32768), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port found")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    subprocess.run([sys.executable, "-m", "ebbtide_serve.examples.tiny_model", str(MODEL)], check=True, timeout=300)
    return MODEL


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    before = dict(os.environ)
    os.environ["EBBTIDE_HOME"] = str(folder / "home")
    name = f"t{os.getpid()}{len(os.listdir(folder.parent))}"
    (folder / "pool.yaml").write_text(CONFIG.format(name=name, port=a_free_port(), model=tiny_model))
    (folder / "mytrain.py").write_text(textwrap.dedent(TRAIN))
    try:
        ebbtide("up", str(folder / "pool.yaml"))
        record = load_cluster()
        join(record)
        yield Pool(record, folder)
    finally:
        ray.shutdown()
        ebbtide("down", "--now", check=False)
        os.environ.clear()
        os.environ.update(before)
