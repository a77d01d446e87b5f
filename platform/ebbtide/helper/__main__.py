"""``python -m ebbtide.helper --pool NAME``: the helper process of a node, started apart with its privileges."""

from pathlib import Path

import click

from ebbtide.helper.daemon import run_helper
from ebbtide.snapshot.driver.driver_choice import find_driver
from ebbtide.system.runtime_dir import helper_socket


@click.command()
@click.option("--pool", help="whose nodes this is one of")
@click.option("--socket", type=click.Path(path_type=Path), help="where to listen; default: where --pool looks")
@click.option("--criu", type=click.Path(path_type=Path), help="CRIU; else EBBTIDE_CRIU, PATH, .criu/criu")
@click.option("--peer-uid", type=int, help="the user who may ask, beside the helper's own")
def main(pool: str | None, socket: Path | None, criu: Path | None, peer_uid: int | None) -> None:
    """Answer requests on a unix socket until killed."""
    if socket is None:
        if not pool:
            raise click.UsageError("whose helper? name the pool by --pool, or the socket by --socket")
        socket = helper_socket(pool, peer_uid)
    run_helper(find_driver(), socket, criu=criu, peer_uid=peer_uid)


if __name__ == "__main__":
    main()
