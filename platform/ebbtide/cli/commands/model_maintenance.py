"""``ebbtide models verify``, ``repair`` and ``gc``: keep the store right and small."""

import re
from dataclasses import asdict
from typing import Any

import click
from rich.filesize import decimal

from ebbtide.cli.commands.model_store import StoreOptions, as_command_error, complete_models, open_store, store_options
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table, warn
from ebbtide.cli.terminal.transfer_bar import TransferBar
from ebbtide.storage.errors import Corrupt, NotPublished
from ebbtide.storage.maintenance.garbage_collection import Collected, collect, filesystem_now_s, survey
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, Verdict, plan
from ebbtide.storage.maintenance.scrub import scrub
from ebbtide.storage.models.importer.import_records import ImportRecords
from ebbtide.storage.models.registry.derived_artifacts import UnusedName, delete_unused, unused_names, without
from ebbtide.storage.models.registry.derived_names import FLAT, model_of
from ebbtide.storage.models.registry.model_names import SHORT_ID, ModelQuery, find
from ebbtide.storage.models.registry.model_repair import repair_model
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_entries import strangers
from ebbtide.system.interrupts import terminated_is_interrupted

STRANGERS_SHOWN = 5
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """Seconds, or ``90s``, ``30min``, ``2h``, ``1d``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds as a float; exit code 2 for anything else."""
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration: write 90s, 30min, 2h or 1d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


@click.command()
@click.argument("names", nargs=-1, shell_complete=complete_models)
@click.option("--all", "everything", is_flag=True, help="All models, also those without a name.")
@click.option("--deep", is_flag=True, help="Check the slower hashes too, those that an object's id is made of.")
@store_options
@json_option
@click.pass_context
def verify(
    ctx: click.Context, *, names: tuple[str, ...], everything: bool, deep: bool, where: StoreOptions, as_json: bool
) -> None:
    """Read models NAMES and compare every chunk with its hash. Exit code 1: something is damaged."""
    if bool(names) == everything:
        raise BadInput("name the models to verify, or take --all")
    store = open_store(where)
    with as_command_error():
        wanted = _all_models(store) if everything else [find(store, name) for name in dict.fromkeys(names)]
    answers: list[dict[str, Any]] = []
    with as_command_error(), TransferBar(quiet=as_json) as bar:
        for one in wanted:
            answers.append(_verify(store, one, deep, bar))
    if as_json:
        print_json({"models": answers})
    else:
        for answer in answers:
            _tell_damage(answer)
        if everything:
            _tell_strangers(store)
    if any(answer["damage"] for answer in answers):
        ctx.exit(CommandFailed.exit_code)


def _verify(store: ObjectStore, wanted: ModelQuery, deep: bool, bar: TransferBar) -> dict[str, Any]:
    damage: list[dict[str, Any]] = []
    size = 0
    try:
        for progress in scrub(store.ports, wanted.object, deep=deep):
            size = progress.total_bytes
            bar.show(f"verifying {wanted}", progress.done_bytes, progress.total_bytes)
            for one in progress.damage:
                part = None if one.part is None else {"offset": one.part.offset, "length": one.part.length}
                damage.append({"file": one.file, "part": part, "what": one.what, "text": str(one)})
    except (Corrupt, NotPublished) as error:
        damage.append({"file": "manifest.json", "part": None, "what": str(error), "text": str(error)})
    return {"model": str(wanted), "object": wanted.object, "size_bytes": size, "damage": damage}


def _all_models(store: ObjectStore) -> list[ModelQuery]:
    """Each object once, by the first of its names; forms that engines load among them."""
    names = {ref.object: ref for ref in reversed(store.refs.readable())}
    found = []
    for target in store.list_objects():
        try:
            if store.manifest(target).kind not in (Kind.MODEL, Kind.FLAT):
                continue
        except NotPublished:
            continue
        except Corrupt:
            pass  # told by the scrub
        found.append(ModelQuery(target, names.get(target)))
    return sorted(found, key=str)


def _tell_strangers(store: ObjectStore) -> None:
    found = [f"{str(path.relative_to(store.paths.root))!a}"[1:-1] for path in strangers(store.paths)]
    if found:
        more = ", ..." if len(found) > STRANGERS_SHOWN else ""
        shown = ", ".join(found[:STRANGERS_SHOWN])
        count = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
        warn(f"not of ebbtide, and left alone in {store.paths.root}: {count} ({shown}{more})")


def _tell_damage(answer: dict[str, Any]) -> None:
    if not answer["damage"]:
        click.echo(f"{answer['model']}: whole, {decimal(answer['size_bytes'])}")
        return
    for one in answer["damage"]:
        click.echo(f"{answer['model']}: damaged: {one['text']}")
    click.echo(f"-> ebbtide models repair {answer['model'].removeprefix('object ')}")


@click.command()
@click.argument("name", shell_complete=complete_models)
@click.option("--from", "source", default=None, help="A good copy; default: where the model was imported from.")
@store_options
@json_option
def repair(*, name: str, source: str | None, where: StoreOptions, as_json: bool) -> None:
    """Find damage in model NAME and write good chunks over the bad ones, and no others."""
    store = open_store(where)
    with as_command_error(), terminated_is_interrupted(), TransferBar(quiet=as_json) as bar:
        found = find(store, name)
        done = repair_model(store, found.object, open_source(source) if source else None, told=bar.show)
    if as_json:
        print_json({"model": str(found), "object": found.object, **asdict(done)})
    elif not done.damage:
        click.echo(f"{found}: whole, nothing to repair")
    elif done.anew:
        click.echo(f"{found}: imported anew from {done.source}")
    else:
        origin = f", {decimal(done.source_bytes)} of them from {done.source}" if done.source else ""
        click.echo(f"{found}: {len(done.damage)} places mended in {', '.join(done.files)}{origin}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--grace", type=Duration(), default=None, help="Age at which what nobody needs may go; default: 1h, 1d.")
@click.option("--unused", type=Duration(), default="30d", show_default=True, help="Age at which unused caches may go.")
@store_options
@json_option
@click.pass_context
def gc(
    ctx: click.Context, *, dry_run: bool, grace: float | None, unused: float, where: StoreOptions, as_json: bool
) -> None:
    """Remove from the store what nobody needs: no name, no holder, older than its grace.

    The grace is an hour for objects and a day for imports that were cut off; --grace sets both. What goes lies in the
    trash for two minutes first, so that a process which comes just then loses nothing; the next gc removes it.
    What was made of a model goes with the model's last name, compiled code when no start has used it for 30 days.
    """
    store = open_store(where)
    allowed = Grace(unused_s=unused) if grace is None else Grace(object_s=grace, work_s=grace, unused_s=unused)
    with as_command_error():
        found = survey(store.ports, judge=not dry_run)  # first: it buries dead holders of models
        names = unused_names(store, allowed) if dry_run else delete_unused(store, allowed)
        verdicts = plan(without(found, names), allowed)
        done = Collected() if dry_run else collect(store.ports, verdicts, allowed)
        if not dry_run:
            records = ImportRecords(store.paths, store.ports.disk)
            records.forget(store.list_objects(), filesystem_now_s(store.ports) - Grace().object_s)
    goes = [one for one in verdicts if one.fate is not Fate.KEEP]
    if as_json:
        print_json(_as_json(store, verdicts, done, dry_run) | {"names": [str(name) for name in names]})
    else:
        for one in names:
            click.echo(f"name {_short(one)} {'would go' if dry_run else 'goes'}: {one.why}")
        _print_collected(store, goes, done, dry_run)
    for verdict, error in done.failed:
        warn(f"{_what(store, verdict)} cannot be removed: {error}")
    if done.failed:
        ctx.exit(CommandFailed.exit_code)


def _short(one: UnusedName) -> str:
    model = model_of(one.name)
    return str(one) if model is None else f"{FLAT}{model[:SHORT_ID]}...:{one.tag}"


def _as_json(store: ObjectStore, verdicts: tuple[Verdict, ...], done: Collected, dry_run: bool) -> dict[str, Any]:
    failed = {str(verdict.path): str(error) for verdict, error in done.failed}
    return {
        "dry_run": dry_run,
        "removed_bytes": done.removed_bytes,
        "verdicts": [
            {
                "what": _what(store, one),
                "fate": one.fate.value,
                "why": one.why,
                "size_bytes": one.size_bytes,
                "object": one.object,
                "done": one in done.done,
                "error": failed.get(str(one.path)),
            }
            for one in verdicts
        ],
    }


def _print_collected(store: ObjectStore, goes: list[Verdict], done: Collected, dry_run: bool) -> None:
    if goes:
        rows = [
            (_what(store, verdict), decimal(verdict.size_bytes), _deed(verdict.fate, dry_run), verdict.why)
            for verdict in goes
        ]
        print_table(("WHAT", "SIZE", "FATE", "WHY"), rows, below=["WHY"])
    trashed = sum(verdict.size_bytes for verdict in goes if verdict.fate is Fate.TRASH)
    if dry_run:
        removed = sum(verdict.size_bytes for verdict in goes if verdict.fate is Fate.REMOVE)
        click.echo(f"{decimal(removed)} would be removed, and {decimal(trashed)} moved to the trash")
    else:
        click.echo(f"{decimal(done.removed_bytes)} removed")
    if trashed:
        click.echo(f"{decimal(trashed)} in the trash are removed by the next gc, two minutes later or more")


def _deed(fate: Fate, dry_run: bool) -> str:
    words = {Fate.TRASH: "to the trash", Fate.REMOVE: "removed", Fate.RESTORE: "back from the trash"}
    return f"would be {words[fate]}" if dry_run and fate is Fate.REMOVE else words[fate]


def _what(store: ObjectStore, verdict: Verdict) -> str:
    place = verdict.path.relative_to(store.paths.root)
    if place.parts[0] == "objects":
        return f"object {verdict.path.name[:SHORT_ID]}"
    return f"{place.parts[0]}/{verdict.path.name[: SHORT_ID * 4]}"
