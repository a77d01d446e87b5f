"""A process that takes a slot lock and obeys; run as a program by the tests of this folder.

usage: holder.py LOCK_DIR INDEX WORKLOAD EPOCH [LOG_DIR [UUID [LEDGER]]]   ("" for none)

Prints "held" or "busy", then reads lines: "fork" (a child that sleeps; prints its pid), "release", "exit".
"""

import os
import sys
import time
from pathlib import Path

from ebbtide.agent.errors import SlotBusy
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import SlotRef


def main() -> None:
    lock_dir, index, workload, epoch = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    log_dir, uuid, ledger = [*sys.argv[5:], "", "", ""][:3]
    lock = SlotLock(
        lock_dir,
        SlotRef("node0", index, uuid),
        workload=workload,
        epoch=epoch,
        rank=2,
        ledger=ledger,
        log_dir=Path(log_dir) if log_dir else None,
    )
    try:
        lock.acquire(0.0)
    except SlotBusy:
        print("busy", flush=True)
        return
    print("held", flush=True)
    for line in sys.stdin:
        if line == "fork\n":
            child = os.fork()
            if child == 0:
                assert not lock.held
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
        elif line == "release\n":
            lock.release()
            print("released", flush=True)
        else:
            return


if __name__ == "__main__":
    main()
