"""Processes on one store: two publish under one ref, one reads, and one collects what nobody holds, at once."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.platform.storage.race_process import SEEDS, open_store
from tests.platform.storage.shim.store_trials import seed_of
from tests.platform.storage.stores import collect_all, leftovers, publish_model

ROLES = ("5", "6", "read", "read", "collect")
SECONDS = 4


def test_whoever_reads_while_two_publish_under_one_ref_and_one_collects_gets_the_one_or_the_other(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    root = tmp_path / "store"
    store = open_store(root)
    publish_model(store, seed=SEEDS[0])
    racing = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.platform.storage.race_process",
                str(root),
                role,
                str(SECONDS),
                str(len(ROLES)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for role in ROLES
    ]
    said = [one.communicate(timeout=120) for one in racing]
    assert [one.returncode for one in racing] == [0] * len(racing), [text for _, text in said]
    counts = [json.loads(text) for text, _ in said]
    names = ("publisher", "publisher", "reader", "reader", "collector")
    record_property("table", "\n".join(f"{name:12}{count}" for name, count in zip(names, counts, strict=True)))
    for one in counts[:2]:
        assert one["published"]
    assert sum(one.get(f"seed {seed}", 0) for one in counts[2:4] for seed in SEEDS) > 0, "nobody read anything"
    assert counts[4].get("removed"), "nothing was ever collected"
    assert seed_of(store, "latest", SEEDS) in SEEDS
    collect_all(store)
    assert leftovers(store) == [] and len(store.list_objects()) == 1
    assert seed_of(store, "latest", SEEDS) in SEEDS
