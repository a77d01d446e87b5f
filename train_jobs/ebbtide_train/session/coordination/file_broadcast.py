"""Rank 0's word to ranks that are parked: a file, since a parked gang has no process group.

Parked ranks must all do the same thing next. Were each to ask the arbiter by itself, one might hear RUN and another,
a moment later, the PARK after it. So rank 0 alone decides and writes one small file per park, by rename; the others
wait for that file.

Not guaranteed: speed on network filesystems that cache negative look-ups; the rendezvous has the same weakness.
"""

import json
import os
import time
from pathlib import Path

from ebbtide.client.messages import DesiredState, JobDirective, Lease, SlotRef

POLL_S = 0.02  # a resume takes 0.1 to 0.2 s (facts of the line): this adds little and costs nothing measurable


def broadcast(path: Path, directive: JobDirective) -> None:
    """Tell the parked ranks."""
    lease = directive.lease
    record = {
        "number": directive.number,
        "want": directive.want.value,
        "lease": None
        if lease is None
        else {
            "workload": lease.workload,
            "epoch": lease.epoch,
            "slots": [[slot.node, slot.index, slot.uuid] for slot in lease.slots],
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.rename(path)


def read_broadcast(path: Path) -> JobDirective | None:
    """What rank 0 said, or None yet."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    lease = record["lease"]
    return JobDirective(
        number=record["number"],
        want=DesiredState(record["want"]),
        lease=None
        if lease is None
        else Lease(lease["workload"], lease["epoch"], tuple(SlotRef(*slot) for slot in lease["slots"])),
    )


def wait_for_broadcast(path: Path) -> JobDirective:
    """Block until rank 0 has spoken. If rank 0 dies instead, whoever runs the gang ends this process."""
    while (word := read_broadcast(path)) is None:
        time.sleep(POLL_S)
    return word
