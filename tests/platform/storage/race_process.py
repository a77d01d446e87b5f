"""One of those who race in a store: ``race_process.py ROOT ROLE SECONDS HOW_MANY``; run by test_store_race.py.

ROLE: a seed publishes its model and moves the one ref to it, again and again; ``read`` opens the ref and reads all;
``collect`` removes what nobody holds or names, and grants no time. Prints what it has come to.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from ebbtide.storage.errors import NotPublished
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.object_leases import SharedLeases
from ebbtide.storage.maintenance.garbage_collection import collect, survey
from ebbtide.storage.maintenance.garbage_plan import Grace, plan
from ebbtide.storage.objects.object_store import ObjectStore
from tests.platform.storage.shim.store_trials import seed_of
from tests.platform.storage.stores import publish_model, store_at

SEEDS = [5, 6]
PACE = Pace(beat_s=0.1, stale_after_s=5.0, answer_s=10.0)
PATIENCE_S = 60.0
# Or a collector would take the files of refs that are being written.
AT_ONCE = Grace(object_s=-1, work_s=-1, trash_s=-1, quarantine_s=-1, temporary_s=3600)


def open_store(root: Path) -> ObjectStore:
    """With leases that other processes see."""
    return store_at(root, leases=SharedLeases(root / "leases", pace=PACE))


def once(store: ObjectStore, role: str) -> str:
    """One turn, and what to count it as."""
    if role == "collect":
        result = collect(store.ports, plan(survey(store.ports), AT_ONCE), AT_ONCE)
        return "removed" if result.done else "nothing"
    if role == "read":
        try:
            return f"seed {seed_of(store, 'latest', SEEDS)}"
        except NotPublished:
            return "gone"
    publish_model(store, seed=int(role))
    return "published"


def main() -> None:
    root, role, for_s, racing = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    store, counts = open_store(root), Counter[str]()
    (root.parent / f"ready-{os.getpid()}").touch()
    while len(list(root.parent.glob("ready-*"))) < racing:  # on a slow day one had ended when the next had just begun
        time.sleep(0.01)
    until_s, collected = time.monotonic() + for_s, root.parent / "collected"
    # All go on until something was collected: on a slow day no turn of the collector meets a model without a ref.
    while time.monotonic() < until_s or (not collected.exists() and time.monotonic() < until_s + PATIENCE_S):
        came = once(store, role)
        counts[came] += 1
        if came == "removed":
            collected.touch()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
