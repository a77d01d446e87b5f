"""Machines that are processes on this one: for trying a cluster file out, and for tests. No machine is bought by it.

Each is a ``ray start --block`` in a session of its own, recorded in a folder, and ended by pid with all that it has
started; ``ray stop`` would end every Ray process of the machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from ebbtide.system.process import started_ticks
from ebbtide_autoscaler.cluster.cluster_processes import end
from ebbtide_autoscaler.cluster.machines import Machine, MachineOrder
from ebbtide_autoscaler.cluster.node_names import MACHINE_LABEL

OWN = ("CPU", "GPU", "memory", "object_store_memory")  # resources that have an option of their own
OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes is 75 MiB; no weights travel through it


class LocalMachines:
    """Raylets of one cluster on this machine."""

    def __init__(self, settings: Mapping[str, Any], cluster_name: str) -> None:
        """Args:
            settings: ``gcs_address`` to join; ``folder`` for records and logs, of this cluster alone.
            cluster_name: not needed: the folder tells clusters apart.

        Raises:
            ValueError: a setting is missing.
        """
        missing = [name for name in ("gcs_address", "folder") if not settings.get(name)]
        if missing:
            raise ValueError(f"provider.machines_config needs {' and '.join(missing)}")
        self._address, self._folder = str(settings["gcs_address"]), Path(settings["folder"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = Lock()

    def there(self) -> Sequence[Machine]:
        """All that run; records of those that have ended are removed."""
        with self._lock:
            return [machine for path in sorted(self._folder.glob("[!.]*.json")) if (machine := self._alive(path))]

    def _alive(self, path: Path) -> Machine | None:
        found = json.loads(path.read_text())
        child = self._children.get(path.stem)
        if (child is not None and child.poll() is not None) or started_ticks(found["pid"]) != found["started"]:
            path.unlink(missing_ok=True)
            self._children.pop(path.stem, None)
            return None
        return Machine(path.stem, found["tags"])

    def start(self, order: MachineOrder) -> None:
        """Start one; it joins the cluster some seconds later."""
        with self._lock, (self._folder / f"{order.id}.log").open("wb") as out:
            child = subprocess.Popen(
                _command(self._address, order),
                env={**os.environ, **order.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._children[order.id] = child
            record = {"pid": child.pid, "started": started_ticks(child.pid), "tags": dict(order.tags)}
            draft = self._folder / f"{order.id}.draft"
            draft.write_text(json.dumps(record))
            draft.rename(self._folder / f"{order.id}.json")

    def stop(self, machine: str) -> None:
        """End one, first asked and then killed."""
        path = self._folder / f"{machine}.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return
        end([(found["pid"], found["started"])])
        with self._lock:
            self._alive(path)


def _command(address: str, order: MachineOrder) -> list[str]:
    others = {name: amount for name, amount in order.resources.items() if name not in OWN}
    labels = {MACHINE_LABEL: order.id, **order.labels}  # each has GPUs of its own, logical as they are
    store = int(order.resources.get("object_store_memory", OBJECT_STORE_BYTES))
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--block"),
        *(f"--num-cpus={order.resources.get('CPU', 0):g}", f"--num-gpus={order.resources.get('GPU', 0):g}"),
        *(f"--resources={json.dumps(others)}", f"--labels={','.join(f'{k}={v}' for k, v in labels.items())}"),
        f"--object-store-memory={store}",
    ]
