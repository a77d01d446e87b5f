"""The commands that this room adds to ``ebbtide``; their modules are imported when they are asked for."""

from ebbtide.cli.listed_command import ListedCommand, Section

COMMANDS = (
    ListedCommand(
        "keys",
        "ebbtide_serve.commands.keys:keys",
        Section.KEYS,
        "API keys of the gateway: create, list, rotate, revoke.",
    ),
)
