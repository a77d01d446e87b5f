"""``python -m ebbtide.helper --pool NAME``: the helper process of a node, started apart with its privileges.

Its state (journal, CRIU's words while it runs) lies beside the socket, in ``helper.sock.state``. Prints one line when
it is ready, and one for each thing that a killed helper had left under way.
"""

import os
import sys
from pathlib import Path

import click

from ebbtide.client.runtime_dir import helper_socket
from ebbtide.helper.adopting import adopt_orphans
from ebbtide.helper.criu.machine import this_machine
from ebbtide.helper.criu.program import NoCriu, find, look_at
from ebbtide.helper.errors import HelperUnusable
from ebbtide.helper.gpu_tree import gpus_of
from ebbtide.helper.journal import Journal
from ebbtide.helper.operation import Tool, Workplace
from ebbtide.helper.server import Server
from ebbtide.helper.service import Service
from ebbtide.snapshot.driver.bounded import BoundedDriver
from ebbtide.snapshot.driver.fake import FakeDriver
from ebbtide.snapshot.driver.find import find_driver
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk


@click.command()
@click.option("--pool", help="whose nodes this is one of")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="where to listen; default: where --pool looks")
@click.option("--criu", type=click.Path(path_type=Path), help="CRIU; else EBBTIDE_CRIU, PATH, .criu/criu")
@click.option("--fake-driver", type=click.Path(path_type=Path), help="state file of a fake GPU driver, for tests")
@click.option("--peer-uid", type=int, help="the user who may ask, beside the helper's own")
def main(
    pool: str | None, path: Path | None, criu: Path | None, fake_driver: Path | None, peer_uid: int | None
) -> None:
    """Answer requests on a unix socket until killed."""
    if path is None:
        if not pool:
            raise click.UsageError("whose helper? name the pool by --pool, or the socket by --socket")
        path = helper_socket(pool, peer_uid)
    path = path.absolute()
    state = path.with_name(path.name + ".state")
    driver = BoundedDriver(FakeDriver(fake_driver) if fake_driver else find_driver())
    program = look_at(criu) if criu else find(os.environ, Path.cwd())
    tool = program if isinstance(program, NoCriu) else Tool(program, this_machine(program.version, gpus_of(driver)))
    try:
        disk = Disk()
        place = Workplace(Journal(state, disk), disk, state / "runs")
        disk.make_directory(place.runs)
    except (HelperUnusable, StorageError) as error:
        sys.exit(f"ebbtide helper: {error}")
    service = Service(place, tool, driver)
    adopt_orphans()
    service.settle_all(lambda text: print(f"settled: {text}", flush=True))
    server = Server(service, path, frozenset({os.geteuid()} | ({peer_uid} if peer_uid is not None else set())))
    print(f"ready: pid {os.getpid()}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
