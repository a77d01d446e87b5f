"""One helper from its start to its end: what an earlier one left is settled, then requests are answered.

Its state (journal, CRIU's words while it runs) lies beside the socket, in ``helper.sock.state``.
"""

import os
import sys
from pathlib import Path

from ebbtide.helper.criu.criu_program import NoCriu, find, look_at
from ebbtide.helper.criu.machine_profile import this_machine
from ebbtide.helper.errors import HelperUnusable
from ebbtide.helper.journal.journal_file import Journal
from ebbtide.helper.journal.operation import Tool, Workplace
from ebbtide.helper.operations.gpu_processes import gpus_of
from ebbtide.helper.server import Server
from ebbtide.helper.service import Service
from ebbtide.helper.subreaper import adopt_orphans
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.port import Driver
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk


def run_helper(driver: Driver, socket: Path, *, criu: Path | None, peer_uid: int | None) -> None:
    """Answer requests until killed. Prints one line when it is ready, and one for each thing that it settled.

    Args:
        driver: of this node's GPUs.
        socket: where to listen.
        criu: the program; None: EBBTIDE_CRIU, PATH, .criu/criu.
        peer_uid: the user who may ask, beside the helper's own.
    """
    socket = socket.absolute()
    state = socket.with_name(socket.name + ".state")
    bounded = BoundedDriver(driver)
    program = look_at(criu) if criu else find(os.environ, Path.cwd())
    tool = program if isinstance(program, NoCriu) else Tool(program, this_machine(program.version, gpus_of(bounded)))
    try:
        disk = Disk()
        place = Workplace(Journal(state, disk), disk, state / "runs")
        disk.make_directory(place.runs)
    except (HelperUnusable, StorageError) as error:
        sys.exit(f"ebbtide helper: {error}")
    service = Service(place, tool, bounded)
    adopt_orphans()
    service.settle_all(lambda text: print(f"settled: {text}", flush=True))
    server = Server(service, socket, frozenset({os.geteuid()} | ({peer_uid} if peer_uid is not None else set())))
    print(f"ready: pid {os.getpid()}", flush=True)
    server.serve()
