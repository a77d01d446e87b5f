"""Stand-ins for the commands of other rooms, while a shell completes: those import Ray, which takes seconds.

A stand-in has the name, the options and the completion of the real command and does nothing. A test compares each with
the real one, so that they cannot come apart.
"""

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from ebbtide.cli.terminal.completion_names import Completer, complete_jobs, complete_keys, complete_logs, complete_nodes

COMPLETE_VARIABLE = "_EBBTIDE_COMPLETE"  # the name that click looks for, made from the program's
_FLAGS = (
    "--json",
    "--wait",
    "--no-wait",
    "--rollback",
    "--yes",
    "--watch",
    "--follow",
    "--no-follow",
    "--rehearse",
    "--detach",
    "--fresh",
)
_FILE = click.Path()


def _stand_in(name: str, options: str, *, file: bool = False, completes: Completer | None = None) -> click.Command:
    """``options``: names in the forms of the command; one that ends in ``=`` takes a file."""
    params: list[click.Parameter] = []
    for option in options.split():
        names = option.rstrip("=").split("/")
        plain = next(part for part in names if part.startswith("--"))
        if option.endswith("="):
            params.append(click.Option(names, type=_FILE))
        else:
            params.append(click.Option(names, is_flag=plain in _FLAGS))
    if file:
        params.append(click.Argument(["file"], type=_FILE, required=False))
    if completes is not None:
        params.append(click.Argument(["name"], required=False, shell_complete=completes))
    return click.Command(name, params=params)


def _new_name(_ctx: click.Context, _param: click.Parameter, _incomplete: str) -> list[CompletionItem]:
    return []


_KEYS = click.Group(
    "keys",
    commands=[
        _stand_in("create", "--scope --endpoint --rpm --tpm --streams --expires --json --pool", completes=_new_name),
        _stand_in("rotate", "--grace --json --pool", completes=complete_keys),
        _stand_in("revoke", "--json --pool", completes=complete_keys),
        _stand_in("list", "--json --pool"),
    ],
)

STAND_INS: Mapping[str, click.Command] = {
    command.name: command
    for command in (
        _stand_in("cancel", "--no-wait --timeout --pool --json", completes=complete_jobs),
        _stand_in("down", "--pool --json"),
        _stand_in("drain", "--reason --yes --no-wait --timeout --pool --json", completes=complete_nodes),
        _stand_in("env", "--pool --json"),
        _stand_in("freeze", "--reason --pool --json"),
        _KEYS,
        _stand_in("logs", "-f/--follow -n/--lines --pool --json", completes=complete_logs),
        _stand_in("park", "--reason --image --wait --no-wait --timeout --pool --json", completes=complete_jobs),
        _stand_in("plan", "--at= --pool --json", file=True),
        _stand_in("probe", "--pool --rehearse --bytes --json", completes=complete_jobs),
        _stand_in("resume", "--wait --no-wait --timeout --pool --json", completes=complete_jobs),
        _stand_in("run", "--name --gpus --detach --owner --idle-after --grace --host-memory --pool --json", file=True),
        _stand_in("sessions", "--pool --json"),
        _stand_in(
            "simulate",
            "--serving= --jobs= --ledger= --policies --seeds --json= --report= --processes --frontier --keep=",
            file=True,
        ),
        _stand_in("status", "--watch --pool --json"),
        _stand_in("submit", "--job --follow --no-follow --fresh --json", file=True),
        _stand_in("undrain", "--pool --json", completes=complete_nodes),
        _stand_in("unfreeze", "--pool --json"),
        _stand_in("up", "--rollback --yes --no-wait --pool --json", file=True),
    )
    if command.name
}
