"""Where the running pool is: the record that ``ebbtide up`` leaves and every other command reads.

It lies in ``$EBBTIDE_HOME`` (``~/.ebbtide``), one folder per pool, mode 0700, because it names the token file. A file
``current`` names the pool that was brought up last.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ebbtide.config.suggestions import did_you_mean


class NoPool(LookupError):
    """No running pool is on record here; the message says how to get one."""


class RecordUnreadable(NoPool):
    """There is a record, and it cannot be read."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A pool's cluster. ``pids`` are (pid, start time) of the Ray processes that ``up`` started; () = it joined one."""

    pool: str
    address: str  # of Ray's GCS
    dashboard_url: str
    gateway_url: str
    shared_dir: str
    config_file: str
    env: Mapping[str, str] = field(default_factory=dict)  # what a process needs in order to join
    temp_dir: str = ""
    pids: tuple[tuple[int, int], ...] = ()
    claim: str = ""  # the mark that the cluster and the shared directory carry


def home() -> Path:
    """The folder of all records.

    Raises:
        NoPool: neither EBBTIDE_HOME nor HOME says where it is, and this user id has no entry in the user database.
    """
    named = os.environ.get("EBBTIDE_HOME")
    if named:
        return Path(named)
    try:
        return Path.home() / ".ebbtide"
    except RuntimeError:
        raise NoPool(
            "there is no home directory to keep the records of pools in: set EBBTIDE_HOME to a folder"
        ) from None


def save_cluster(record: ClusterRecord) -> Path:
    """Write the record, atomically, and make its pool the current one."""
    folder = home() / record.pool
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(folder / "cluster.json", json.dumps(asdict(record), indent=2))
    _replace(home() / "current", record.pool)
    return folder


def load_cluster(pool: str | None = None) -> ClusterRecord:
    """The record of ``pool``, or of the pool brought up last.

    Raises:
        NoPool: nothing is on record, or it cannot be read (RecordUnreadable).
    """
    try:
        name = pool or (home() / "current").read_text().strip()
        found = json.loads((home() / name / "cluster.json").read_text())
        found["pids"] = tuple((int(pid), int(started)) for pid, started in found["pids"])
        return ClusterRecord(**found)
    except FileNotFoundError:
        which = f"pool {pool}" if pool else "pool"
        meant = did_you_mean(pool, known_pools()) if pool else None
        raise NoPool(
            f"no running {which} is on record in {home()}; {f'{meant} Or ' if meant else ''}start one: ebbtide up FILE"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordUnreadable(
            f"the record of the pool in {home()} cannot be read ({error}); run: ebbtide up FILE"
        ) from None


def known_pools() -> list[str]:
    """Names of all pools on record here."""
    return sorted(path.parent.name for path in home().glob("*/cluster.json"))


def forget_cluster(pool: str) -> None:
    """Remove the record of ``pool``."""
    (home() / pool / "cluster.json").unlink(missing_ok=True)
    current = home() / "current"
    if current.exists() and current.read_text().strip() == pool:
        current.unlink()


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
