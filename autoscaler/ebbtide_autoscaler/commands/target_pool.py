"""Which pool a command is about, and joining it."""

import click

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster

POOL = click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")


def the_pool(name: str | None) -> ClusterRecord:
    """The record of a running pool.

    Raises:
        BadInput: there is none.
    """
    try:
        return load_cluster(name)
    except NoPool as error:
        raise BadInput(str(error)) from error


def join_pool(name: str | None) -> ClusterRecord:
    """The same, and this process has joined its cluster.

    Raises:
        ClickException: nothing answers there.
    """
    record = the_pool(name)
    try:
        join(record)
    except ClusterUnreachable as error:
        raise CommandFailed(
            f"{error}; if the cluster is lost, `ebbtide up {record.config_file}` restores it"
        ) from error
    return record


def say(line: str) -> None:
    """Progress goes to stderr, results to stdout."""
    click.echo(line, err=True)
