"""Digests of what simulated arbiters decide, for two versions of the code to be compared by: a move changes none.

``python -m tests.autoscaler.streams --seeds 200 --out before.json``, then, with the other code, ``--same-as
before.json``: exit code 1 names the seeds whose streams differ. Reasons are left out, since sentences may change.
"""

import hashlib
import json
import sys
from pathlib import Path

import click

from ebbtide_autoscaler.journal.records import encode_event
from tests.autoscaler.chaos import Chaos

MASKED = ("reason", "why", "detail")


def digest(seed: int) -> str:
    """Of all events of one seed."""
    chaos = Chaos(seed)
    try:
        chaos.run()
    except AssertionError as error:  # a broken promise is part of the stream
        ended = type(error).__name__
    else:
        ended = "clean"
    found = hashlib.sha256(ended.encode())
    for event in chaos.loop.events:
        record = encode_event(event)
        body = {name: value for name, value in record["body"].items() if name not in MASKED}
        found.update(json.dumps({**record, "body": body}, sort_keys=True).encode())
    return f"{len(chaos.loop.events)} events, {found.hexdigest()}"


@click.command(help=__doc__)
@click.option("--seeds", type=int, default=200, show_default=True)
@click.option("--first", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--same-as", type=click.Path(path_type=Path, exists=True))
def main(seeds: int, first: int, out: Path | None, same_as: Path | None) -> None:
    """Play, and write or compare."""
    before = json.loads(same_as.read_text()) if same_as is not None else {}
    found, differ = {}, []
    for seed in map(int, before) if before else range(first, first + seeds):
        found[str(seed)] = digest(seed)
        if before and before[str(seed)] != found[str(seed)]:
            differ.append(seed)
            click.echo(f"seed {seed}: {before[str(seed)]} before, {found[str(seed)]} now")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(f"{len(found)} seeds, {len(differ)} differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
