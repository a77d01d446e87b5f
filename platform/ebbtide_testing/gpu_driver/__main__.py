"""``python -m ebbtide_testing.gpu_driver --fake-driver FILE --socket PATH``: a helper with GPUs that a file plays."""

from pathlib import Path

import click

from ebbtide.helper.daemon import run_helper
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver


@click.command()
@click.option("--fake-driver", required=True, type=click.Path(path_type=Path), help="state file of the fake driver")
@click.option("--socket", required=True, type=click.Path(path_type=Path), help="where to listen")
@click.option("--criu", type=click.Path(path_type=Path), help="CRIU; else EBBTIDE_CRIU, PATH, .criu/criu")
@click.option("--peer-uid", type=int, help="the user who may ask, beside the helper's own")
def main(fake_driver: Path, socket: Path, criu: Path | None, peer_uid: int | None) -> None:
    """Answer requests as the helper of a node does."""
    run_helper(FakeDriver(fake_driver), socket, criu=criu, peer_uid=peer_uid)


if __name__ == "__main__":
    main()
