"""Models of the Hugging Face hub that a pool file names: are they in the pool's store, and how do they come there."""

from dataclasses import replace

import click

from ebbtide.cli.commands.model_store import StoreOptions, as_command_error, open_store
from ebbtide.cli.commands.shown_import import checked_source, import_shown, told_import
from ebbtide.cli.terminal.output import warn
from ebbtide.config.checks.hub_models import HubModel, hub_models
from ebbtide.config.errors import ConfigProblem
from ebbtide.config.finding import Finding
from ebbtide.config.loading.pool_file_loader import LoadedFile
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.names import ref_name, tag
from ebbtide.storage.objects.store_paths import StorePaths


def missing(loaded: LoadedFile) -> list[HubModel]:
    """Those that the pool's store does not have by their names; none for a file without a shared directory."""
    shared_dir = loaded.config.pool.shared_dir
    if shared_dir is None:
        return []
    paths = StorePaths(shared_dir / "store")
    with as_command_error():
        return [one for one in hub_models(loaded) if not paths.ref(ref_name(one.id.name), tag(one.id.tag)).is_file()]


def missing_problems(loaded: LoadedFile) -> list[ConfigProblem]:
    """A problem for each of them, with the command that brings it in."""
    return [replace(loaded.problem(_finding(one, loaded)), scope="machine") for one in missing(loaded)]


def _finding(one: HubModel, loaded: LoadedFile) -> Finding:
    is_none = f"there is no directory {one.directory}, and " if one.directory is not None else ""
    remedy = f"import it once: {one.command(loaded.path)}; or at the start: ebbtide up {loaded.path} --import"
    what = f"{is_none}the pool's store has no model {one.id.stored}"
    return Finding(("endpoints", one.endpoint, "model"), what, remedy)


def bring_in(loaded: LoadedFile, *, quiet: bool) -> None:
    """Import those that are missing, one after the other; another process that imports the same is waited for.

    Raises:
        BadInput, CommandFailed: as `ebbtide models import` does.
    """
    wanted = {one.id: None for one in missing(loaded)}
    if not wanted:
        return
    store = open_store(StoreOptions(None, None, loaded.path), make=True, kind=TrafficClass.PREFETCH)
    for one in wanted:
        if not quiet:
            click.echo(f"importing {one.url} as {one.stored}", err=True)
        done = import_shown(store, checked_source(one.url), one.name, one.tag, quiet=quiet)
        for note in done.notes:
            warn(note)
        if not quiet:
            click.echo(told_import(done), err=True)
