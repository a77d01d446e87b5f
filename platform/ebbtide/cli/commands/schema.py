"""``ebbtide schema``: what editors need to complete and check a file while it is written."""

import click

from ebbtide.cli.terminal.output import json_option, print_json
from ebbtide.config.loading.json_schema import pool_file_schema


@click.command()
@json_option
def schema(*, as_json: bool) -> None:
    """Print the JSON schema of a pool file (always JSON).

    For yaml-language-server write it to a file, and put this into the first line of your YAML:

    \b
      # yaml-language-server: $schema=PATH/ebbtide.schema.json
    """
    print_json(pool_file_schema())
