"""`ebbtide schema` prints what editors read, and nothing else."""

import json

from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide.config.loading.json_schema import pool_file_schema


def test_the_schema_is_printed_as_json_with_or_without_the_option() -> None:
    for arguments in (["schema"], ["schema", "--json"]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0
        assert json.loads(result.stdout) == pool_file_schema()
