"""``ebbtide keys``: API keys of the gateway."""

import re
import secrets
import time
from hashlib import sha256
from typing import Any

import click

from ebbtide.cli.terminal.completion_names import complete_keys
from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.cli.terminal.output import json_option, print_json, print_table
from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import NoPool, load_cluster
from ebbtide.client.messages import KeyGrant

SECRET_BYTES = 32  # 256 random bits; 128 would do, and nobody types them
SCOPES = {"inference": ("models", "generate"), "admin": ("models", "admin")}
"""As in the pool's file, and what each opens at the gateway."""
CALL_S = 15.0  # the change is journaled first; while the ledger hangs the arbiter says so after 10 s
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

POOL = click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
NEW_NAME = click.argument("name")
NAME = click.argument("name", shell_complete=complete_keys)


class Duration(click.ParamType):  # type: ignore[type-arg] # generic in newer versions of click only
    """``90s``, ``15m``, ``1h``, ``30d``: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, or click's error."""
        match = re.fullmatch(r"(\d{1,9})([smhd])", str(value))
        if match is None:
            self.fail(f"{value!r} is no duration: write 90s, 15m, 1h or 30d", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


@click.group()
def keys() -> None:
    """API keys of the gateway: create, list, rotate, revoke. They take effect within a second."""


@keys.command()
@NEW_NAME
@click.option("--scope", "scopes", multiple=True, type=click.Choice(sorted(SCOPES)), help="Default: inference.")
@click.option("--endpoint", "endpoints", multiple=True, help="May use only this endpoint; repeatable. Default: all.")
@click.option("--rpm", type=click.IntRange(1, 2**53), help="Requests per minute.")
@click.option("--tpm", type=click.IntRange(1, 2**53), help="Prompt and generated tokens per minute.")
@click.option("--streams", type=click.IntRange(1, 2**53), help="Requests in flight at once.")
@click.option("--expires", type=Duration(), help="Good for so long: 90s, 15m, 1h, 30d.")
@json_option
@POOL
def create(
    name: str,
    scopes: tuple[str, ...],
    endpoints: tuple[str, ...],
    rpm: int | None,
    tpm: int | None,
    streams: int | None,
    expires: float | None,
    as_json: bool,
    pool: str | None,
) -> None:
    """Make the key NAME and print its secret: this once, since only its SHA-256 is kept."""
    secret = _new_secret()
    grant = KeyGrant(
        name=name,
        sha256=sha256(secret.encode()).hexdigest(),
        scopes=tuple(dict.fromkeys(part for scope in scopes or ("inference",) for part in SCOPES[scope])),
        endpoints=endpoints or None,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        concurrent_streams=streams,
        expires_s=None if expires is None else time.time() + expires,
    )
    _show(_ask(pool, "create_key", grant), secret, as_json)


@keys.command()
@NAME
@click.option("--grace", type=Duration(), default="1h", show_default=True, help="How long the old secret stays good.")
@json_option
@POOL
def rotate(name: str, grace: float, as_json: bool, pool: str | None) -> None:
    """Give the key NAME another secret and print it; the old one stays good for --grace (0s: not at all)."""
    secret = _new_secret()
    _show(_ask(pool, "rotate_key", name, sha256(secret.encode()).hexdigest(), grace), secret, as_json)


@keys.command()
@NAME
@json_option
@POOL
def revoke(name: str, as_json: bool, pool: str | None) -> None:
    """Close the key NAME for good. Requests that run end as they would; new ones are refused within a second."""
    row = _ask(pool, "revoke_key", name)
    already = not row.get("changed", True)
    if as_json:
        print_json({key: value for key, value in row.items() if key != "changed"} | {"already": already})
    else:
        click.echo(f"key {name} is revoked{' already' if already else ''}")


@keys.command(name="list")
@json_option
@POOL
def list_keys(as_json: bool, pool: str | None) -> None:
    """Show all keys, those of the pool's file too; never a secret."""
    rows = _ask(pool, "keys")
    if as_json:
        print_json({"keys": rows})
        return
    columns = ("key", "from", "state", "scopes", "endpoints", "rpm", "tpm", "streams", "expires")
    print_table(columns, [_cells(row) for row in rows], optional=["from", "streams", "tpm", "rpm"], below=["endpoints"])


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    def when(at_s: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))

    old = row.get("old_secret_until_at_s")
    return (
        row["name"],
        row["from"],
        row["state"] + (f", old secret until {when(old)}" if old else ""),
        ",".join(row["scopes"]),
        row["endpoints"] if isinstance(row["endpoints"], str) else ",".join(row["endpoints"]),
        row["requests_per_minute"],
        row["tokens_per_minute"],
        row["concurrent_streams"],
        when(row["expires_at_s"]) if row["expires_at_s"] else None,
    )


def _new_secret() -> str:
    return f"ebb-{secrets.token_urlsafe(SECRET_BYTES)}"


def _show(row: dict[str, Any], secret: str, as_json: bool) -> None:
    if as_json:
        print_json(row | {"secret": secret})
        return
    click.echo(f"key {row['name']}: keep this secret, it is not shown again", err=True)
    click.echo(secret)  # alone on stdout: KEY=$(ebbtide keys create ...)


def _ask(pool: str | None, method: str, *args: object) -> Any:
    """The arbiter's answer.

    Raises:
        ClickException: there is no pool, nobody answers, or it was refused.
    """
    try:
        join(load_cluster(pool))
        answer = ArbiterLink().call(method, *args, timeout_s=CALL_S)
    except NoPool as error:
        raise BadInput(str(error)) from error
    except ClusterUnreachable as error:
        raise CommandFailed(str(error)) from error
    except ValueError as error:
        raise BadInput(str(error)) from error
    if answer is None:
        raise CommandFailed("the arbiter does not answer; keys stay as they are. See `ebbtide status`")
    return answer
