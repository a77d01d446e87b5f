"""The commands that this room adds to ``ebbtide``; their modules are imported when they are asked for."""

from ebbtide.cli.listed_command import ListedCommand, Section

COMMANDS = (
    ListedCommand(
        "init",
        "ebbtide_quickstart.init:init",
        Section.POOL,
        "Write a commented pool file that runs on this machine; ask nothing.",
    ),
    ListedCommand(
        "demo",
        "ebbtide_quickstart.demo:demo",
        Section.POOL,
        "Show one tide on this machine: a request takes a job's slot, and the job goes on without losing a step.",
    ),
)
