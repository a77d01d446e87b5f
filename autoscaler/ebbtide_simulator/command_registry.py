"""The command that this room adds to ``ebbtide``; its module is imported when it is asked for."""

from ebbtide.cli.listed_command import ListedCommand, Section

COMMANDS = (
    ListedCommand(
        "simulate",
        "ebbtide_simulator.command:simulate",
        Section.POOL,
        "Play CONFIG's pool with recorded traffic and jobs, under our policy and under what teams do instead.",
    ),
)
