"""``ebbtide models``: bring models into the pool's store, see what is there, take them out."""

import time
from dataclasses import asdict
from typing import Any

import click
from rich.filesize import decimal

from ebbtide.cli.commands.model_maintenance import gc, repair, verify
from ebbtide.cli.commands.model_store import StoreOptions, as_command_error, complete_models, open_store, store_options
from ebbtide.cli.commands.shown_import import checked_source, import_shown, told_import
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table, warn
from ebbtide.cli.terminal.transfer_bar import TransferBar
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.errors import Corrupt, NotPublished
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.maintenance.garbage_plan import Grace
from ebbtide.storage.models.registry import model_export
from ebbtide.storage.models.registry.model_list import ModelRow, holders_of_objects, list_models
from ebbtide.storage.models.registry.model_names import LATEST, SHORT_ID, check_is_free, find, split_ref
from ebbtide.system.interrupts import terminated_is_interrupted


@click.group()
def models() -> None:
    """The models in the pool's store: weights, configuration, tokenizer."""


@models.command("import")
@click.argument("source")
@click.option("--name", default=None, help="What to call it, such as org/model; default: made of SOURCE.")
@click.option("--tag", default=LATEST, show_default=True, help="Which of that name.")
@store_options
@json_option
def import_(*, source: str, name: str | None, tag: str, where: StoreOptions, as_json: bool) -> None:
    """Bring in a model from SOURCE: a directory, or a URL such as s3://, gs://, https:// or hf://.

    Safetensors, configuration and tokenizer are taken; code and pickles are not. If others import the same source at
    the same time, one copies and all get the result. What was copied is kept when this is stopped or killed: the same
    command goes on with it.
    """
    opened = checked_source(source)
    store = open_store(where, make=True, kind=TrafficClass.PREFETCH)
    done = import_shown(store, opened, name, tag, quiet=as_json)
    if as_json:
        facts = {key: value for key, value in asdict(done).items() if key not in ("how", "seconds")}
        print_json({"how": done.how.value, **facts, "took_s": done.seconds})
        return
    for note in done.notes:
        warn(note)
    click.echo(told_import(done))


@models.command("list")
@store_options
@json_option
def list_(*, where: StoreOptions, as_json: bool) -> None:
    """Show all models: name, size, types, and who uses them."""
    store = open_store(where)
    with as_command_error():
        rows = list_models(store)
    if as_json:
        print_json({"models": [asdict(row) for row in rows]})
        return
    columns = ("NAME", "TAG", "OBJECT", "SIZE", "TENSORS", "TYPE", "SINCE", "USED BY")
    print_table(columns, [_cells(row) for row in rows], below=["USED BY"], optional=["TENSORS", "SINCE", "TYPE"])


def _cells(row: ModelRow) -> tuple[object, ...]:
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.at_s)) if row.at_s else ""
    used = [f"also {other}" for other in row.refs if other != f"{row.name}:{row.tag}"]
    used += [f"{holder.who}{_silence(holder.silent_s)}" for holder in row.holders]
    used += [f"flat: {form}" for form in row.flat_forms]
    if not row.name:
        used.append("no name: the next gc takes it unless it is in use")
    used += [f"DAMAGED: {row.problem}"] if row.problem else []
    size = decimal(row.size_bytes) if row.size_bytes else ""
    short = (row.object or "")[:SHORT_ID]
    return row.name or "-", row.tag or "-", short, size, row.num_tensors or "", row.dtype, at, "; ".join(used)


def _silence(silent_s: float) -> str:
    return f" (silent for {silent_s:.0f} s)" if silent_s > 30 else ""  # half of what a living one may be


@models.command("export")
@click.argument("name", shell_complete=complete_models)
@click.argument("destination")
@store_options
@json_option
def export(*, name: str, destination: str, where: StoreOptions, as_json: bool) -> None:
    """Write model NAME[:TAG] to DESTINATION, a directory or URL, as any tool reads it.

    Everything is checked while it is read. Nothing is overwritten; an export that was cut off goes on.
    """
    store = open_store(where, kind=TrafficClass.PREFETCH)
    with as_command_error(), terminated_is_interrupted():
        found = find(store, name)
        with store.open(found.object) as stored, TransferBar(quiet=as_json) as bar:
            try:
                done = model_export.export(
                    stored, destination, progress=lambda count, total: bar.show("exporting", count, total)
                )
            except Corrupt as error:
                raise CommandFailed(f"{error} -> ebbtide models repair {name}") from error
            except KeyboardInterrupt:
                raise CommandFailed("stopped; the same command goes on with what was written") from None
    if as_json:
        print_json({"object": found.object, **asdict(done)})
        return
    saved = f"; {decimal(done.saved_bytes)} were there already" if done.saved_bytes else ""
    click.echo(f"{found}: {len(done.files)} files, {decimal(done.written_bytes)} written to {done.where}{saved}")


@models.command("rm")
@click.argument("name", shell_complete=complete_models)
@store_options
@json_option
def rm(*, name: str, where: StoreOptions, as_json: bool) -> None:
    """Remove the name NAME[:TAG]. The model itself goes with a later gc, when nothing needs it any more."""
    store = open_store(where)
    with as_command_error():
        ref_text, tag_text = split_ref(name)
        check_is_free(ref_text)
        try:
            target = find(store, f"{ref_text}:{tag_text}").object
        except (Corrupt, NotPublished):  # a damaged name, or one that leads nowhere, can be removed too
            target = None
        if not store.refs.delete(ref_text, tag_text):
            there = ", ".join(store.refs.tags(ref_text)) or "none"
            raise BadInput(f"there is no {ref_text}:{tag_text}; tags of {ref_text}: {there}")
        answer: dict[str, Any] = {"removed": f"{ref_text}:{tag_text}", "object": target, "names": [], "holders": []}
        if target is not None:
            answer["names"] = [str(one) for one in store.refs.readable() if one.object == target]
            answer["holders"] = [one.who for one in holders_of_objects(store).get(of_object(target), [])]
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['removed']} is removed; {_fate(answer)}")


def _fate(answer: dict[str, Any]) -> str:
    if answer["object"] is None:
        return "it led to no model"
    short = answer["object"][:SHORT_ID]
    if answer["names"]:
        return f"object {short} stays: {', '.join(answer['names'])} names it"
    held = f", once {', '.join(answer['holders'])} let go of it" if answer["holders"] else ""
    hours = Grace().object_s / 3600
    return f"`ebbtide models gc` takes object {short} when it is {hours:g} h old{held}"


for command in (verify, repair, gc):
    models.add_command(command)
