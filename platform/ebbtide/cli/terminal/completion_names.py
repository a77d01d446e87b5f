"""Names for shell completion: jobs, endpoints, seats, nodes, slots and keys, quickly and without Ray.

They come from the node-local index of the ledger. It is brought up to date in a thread for a moment, and what is
there by then is offered: a shell waits for us at every press of TAB, and a missing name costs less than a second.
Whatever goes wrong, nothing is offered; a completion never prints an error.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ebbtide.client.cluster_record import NoPool, home, load_cluster
from ebbtide.ledger.errors import LedgerError
from ebbtide.ledger.sqlite_index import LedgerIndex

UPDATE_S = 0.1  # for reading what is new; a batch of 1,000 records takes 30 ms and is kept when time is up
_SHAPES = {
    "slot": re.compile(r".+:\d+"),
    "seat": re.compile(r"[^:]+/\d+"),
    "node": re.compile(r"[0-9a-f]{40,}"),
}
_KEY = "json_extract(payload, '$.key.grant.name')"  # see ``key_store.key_record``
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def index_file(directory: Path) -> Path:
    """Where the index of the ledger in ``directory`` lies on this node."""
    return home() / "index" / f"{sha256(str(directory.resolve()).encode()).hexdigest()[:16]}.sqlite"


def known_names(pool: str | None = None) -> dict[str, list[str]]:
    """All names by kind: job, endpoint, seat, node, slot, key."""
    directory = Path(load_cluster(pool).shared_dir) / "ledger"
    database = index_file(directory)
    updating = threading.Thread(target=_update, args=(directory, database), daemon=True)
    updating.start()
    updating.join(UPDATE_S)
    if not database.exists():
        return {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=0.1)) as db:
        names = [str(row[0]) for row in db.execute("SELECT DISTINCT name FROM subject")]
        declared = _last(db, "endpoint_declared", "$.body.spec.name")
        # Those of the pool's file are left out: they are changed there, and these commands refuse them.
        keys = [str(row[0]) for row in db.execute(f"SELECT DISTINCT {_KEY} FROM record WHERE type='key'") if row[0]]
    return _sorted_by_kind(names, declared, keys)


def _last(db: sqlite3.Connection, kind: str, path: str) -> set[str]:
    found = db.execute(
        "SELECT DISTINCT json_extract(payload, ?) FROM record WHERE type='event' AND payload LIKE ?",
        [path, f'%"{kind}"%'],
    )
    return {str(row[0]) for row in found if row[0]}


def _sorted_by_kind(names: Iterable[str], endpoints: set[str], keys: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {kind: set() for kind in ("job", "endpoint", "seat", "node", "slot", "key")}
    found["endpoint"] |= endpoints
    found["key"] |= set(keys)
    for name in names:
        kind = next((kind for kind, shape in _SHAPES.items() if shape.fullmatch(name)), "job")
        if kind != "job" or (name not in endpoints and name not in found["key"]):
            found[kind].add(name)
    return {kind: sorted(values) for kind, values in found.items()}


def _update(directory: Path, database: Path) -> None:
    with suppress(LedgerError, OSError, sqlite3.Error), LedgerIndex(directory, database) as index:
        index.update()


def _completer(*kinds: str, words: tuple[str, ...] = ()) -> Completer:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            known = known_names(ctx.params.get("pool"))
        except (NoPool, OSError, sqlite3.Error):
            known = {}
        offered = [*words, *(_short(name, kind) for kind in kinds for name in known.get(kind, ()))]
        return [CompletionItem(name) for name in dict.fromkeys(offered) if name.startswith(incomplete)]

    return complete


def _short(name: str, kind: str) -> str:
    """As `status` prints it: the ids of nodes are long, and their beginning says enough."""
    if kind == "node":
        return name[:8]
    if kind == "slot":
        node, _, index = name.rpartition(":")
        return f"{node[:8]}:{index}"
    return name


def complete_files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, as the shell itself completes them; for what is a file and something more."""
    return [CompletionItem(incomplete, type="file")]


complete_jobs = _completer("job")
complete_nodes = _completer("node")
complete_keys = _completer("key")
complete_subjects = _completer("job", "endpoint", "seat", "slot", "node")
complete_logs = _completer("job", "endpoint", "seat", "node", words=("arbiter", "gateway"))
