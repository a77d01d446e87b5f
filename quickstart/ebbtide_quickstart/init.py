"""``ebbtide init``: a pool file that runs on this machine, an example job and, without a model, a small one."""

import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import click

from ebbtide.cli.terminal.errors import BadInput
from ebbtide.cli.terminal.output import json_option, print_json, warn
from ebbtide.client.cluster_record import NoPool, load_cluster
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load_text
from ebbtide.config.sections.scalars import BARE_HUB_ID, HUB
from ebbtide_quickstart.example_model import make_example_model
from ebbtide_quickstart.pool_draft import CODE, EXAMPLE_ENTRYPOINT, EXAMPLE_MODEL, PoolDraft, pool_text

FIRST_PORT, PORTS = 8000, 100
EXAMPLE_JOB = Path(__file__).with_name("example_job.py")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default="pool.yaml")
@click.option("--gpus", type=click.IntRange(min=1), help="Slots of the pool. Default: every GPU of this machine.")
@click.option("--model", help="A model directory, or org/name of the Hugging Face hub. Default: a small random one.")
@click.option("--job", "entrypoint", help="module:function of a train function. Default: a small example.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
def init(file: Path, gpus: int | None, model: str | None, entrypoint: str | None, force: bool, as_json: bool) -> None:
    """Write a commented pool file that runs on this machine; ask nothing.

    FILE is pool.yaml by default. Beside it come code/train.py, an example job, and models/tiny, a small random model,
    unless --job and --model name your own. What is there already stays.
    """
    if file.exists() and not force:
        raise BadInput(f"{file} is there already: name another file, or replace it with --force")
    folder = file.absolute().parent
    draft = PoolDraft(
        file=str(file),
        slots=gpus,
        port=port_of_the_pool(PoolDraft().pool) or free_port(),
        model=model,
        entrypoint=entrypoint,
        on_gpus=Path("/dev/nvidiactl").exists(),  # made by NVIDIA's driver when it finds a GPU
        from_hub=model is not None and is_of_hub(model, folder),
    )
    written = write_pool(file, draft)
    if model is None and not (folder / EXAMPLE_MODEL / "config.json").exists():
        warn(f"making {EXAMPLE_MODEL}, a small random model, takes some 10 s")
        make_example_model(folder / EXAMPLE_MODEL)
        written[EXAMPLE_MODEL] = "a small random model, which answers nonsense"
    if as_json:
        print_json({"file": str(file), "files": sorted(written), "port": draft.port})
        return
    for name, what in written.items():
        click.echo(f"{name}: {what}")
    click.echo(f"Next: ebbtide up {file}{' --import' if draft.from_hub else ''}")


def write_pool(file: Path, draft: PoolDraft) -> dict[str, str]:
    """Write the file, and the example job if it is the one that is named; what was written, with a word on each.

    Raises:
        BadInput: the options make no valid file; nothing was written.
    """
    text = pool_text(draft)
    try:
        load_text(text, path=file)
    except ConfigErrors as errors:
        raise BadInput("; ".join(f"{one.path}: {one.message}" for one in errors.problems)) from errors
    written = {}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        written[str(file)] = "the pool"
        job = file.parent / CODE / f"{EXAMPLE_ENTRYPOINT.partition(':')[0]}.py"
        if draft.entrypoint is None and not job.exists():
            job.parent.mkdir(exist_ok=True)
            shutil.copyfile(EXAMPLE_JOB, job)
            written[str(job.relative_to(file.parent))] = "an example job; put your own training there"
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be written: {error.strerror}") from error
    return written


def is_of_hub(model: str, folder: Path) -> bool:
    """Whether it is ``hf://org/name``, or ``org/name`` and no directory beside the file has that name."""
    return model.startswith(HUB) or (BARE_HUB_ID.fullmatch(model) is not None and not (folder / model).exists())


def port_of_the_pool(pool: str) -> int | None:
    """The gateway's port of the pool of that name that is up here: another one would mean another pool."""
    try:
        return urlsplit(load_cluster(pool).gateway_url).port
    except (NoPool, ValueError):
        return None


def free_port() -> int:
    """The first port from 8000 on at which a gateway can listen now.

    Raises:
        BadInput: a hundred of them are in use.
    """
    for port in range(FIRST_PORT, FIRST_PORT + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise BadInput(f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all in use")
