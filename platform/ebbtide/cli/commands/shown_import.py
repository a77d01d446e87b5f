"""An import that shows how far it is, and what it did in a sentence."""

from rich.filesize import decimal

from ebbtide.cli.commands.model_store import as_command_error
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.transfer_bar import TransferBar
from ebbtide.config.sections.scalars import HUB
from ebbtide.storage.models.importer.import_progress import ImportProgress
from ebbtide.storage.models.importer.import_terms import How, Imported
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.registry.model_names import SHORT_ID, check_is_free, default_name
from ebbtide.storage.models.sources.source import Source
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.names import ref_name
from ebbtide.storage.names import tag as checked_tag
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.remote.urls import local_path
from ebbtide.system.interrupts import terminated_is_interrupted

_HOW = {
    How.COPIED: "imported",
    How.SAME: "copied, and found to be here already: nothing new",
    How.SHARED: "imported by another process at the same time",
    How.KNOWN: "imported already: nothing was copied",
}


def checked_source(text: str) -> Source:
    """What a user named, looked at before anything is made for it.

    Raises:
        BadInput: it names no source, or a directory that is not there.
    """
    with as_command_error():
        opened = open_source(text)
    path = local_path(text)
    if path is not None and not path.is_dir():
        raise BadInput(f"{path} is no directory" if path.exists() else f"there is no directory {path}")
    if text.startswith(HUB) and len(text.removeprefix(HUB).strip("/").split("/")) < 2:
        raise BadInput(f"{text} names no model of the hub: write {HUB}org/name, or {HUB}org/name@revision")
    return opened


def import_shown(store: ObjectStore, opened: Source, name: str | None, tag: str, *, quiet: bool) -> Imported:
    """Bring a model in: a bar on a terminal, a line now and then elsewhere.

    Args:
        store: of the pool.
        opened: where it comes from.
        name: what to call it; None: made of the source.
        tag: which of that name.
        quiet: no lines.

    Raises:
        BadInput: it cannot be a model, or have that name.
        CommandFailed: it failed, or was stopped.
    """
    with as_command_error():
        ref = check_is_free(ref_name(default_name(opened.where) if name is None else name)), checked_tag(tag)

        def observe(progress: ImportProgress) -> None:
            bar.show(progress.phase.value, progress.done_bytes, progress.total_bytes, why=progress.why)

        with terminated_is_interrupted(), TransferBar(quiet=quiet) as bar:
            try:
                return import_model(store, opened, ref, observe=observe)
            except KeyboardInterrupt:
                raise CommandFailed("stopped; what was copied is kept, and the same command goes on with it") from None


def told_import(done: Imported) -> str:
    """What an import did, for people."""
    text = f"{done.ref}: {_HOW[done.how]}; object {done.object[:SHORT_ID]}, {done.num_tensors} tensors, "
    text += decimal(done.size_bytes)
    if done.how in (How.COPIED, How.SAME):
        rate = f", {decimal(int(done.copied_bytes / done.seconds))}/s" if done.seconds > 1 else ""
        text += f"; copied {decimal(done.copied_bytes)} in {done.seconds:.1f} s{rate}"
    if done.saved_bytes:
        text += f"; {decimal(done.saved_bytes)} were on disk from an earlier attempt"
    if done.moved_ref and done.how is not How.COPIED:
        text += "; the name is new or pointed elsewhere"
    return text
