"""What the registries say of commands is what the commands are."""

import click
import pytest

from ebbtide.cli.command_plugins import load_command
from ebbtide.cli.listed_command import ListedCommand
from ebbtide.cli.main import cli


@pytest.mark.parametrize("listed", cli.listed.values(), ids=lambda listed: listed.name)
def test_a_line_of_the_help_is_the_first_sentence_of_the_command(listed: ListedCommand) -> None:
    real = load_command(listed)
    assert (real.name, real.get_short_help_str(limit=1_000)) == (listed.name, listed.help)
    assert not real.hidden and not real.deprecated


def test_every_room_is_there() -> None:
    rooms = {listed.place.partition(".")[0] for listed in cli.listed.values()}
    assert rooms == {
        "ebbtide",
        "ebbtide_autoscaler",
        "ebbtide_quickstart",
        "ebbtide_serve",
        "ebbtide_simulator",
        "ebbtide_train",
    }


def test_the_help_shows_every_command_once() -> None:
    names = list(cli.listed)
    assert len(set(names)) == len(names) and cli.list_commands(click.Context(cli)) == names
