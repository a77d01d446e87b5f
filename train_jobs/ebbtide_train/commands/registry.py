"""The commands that this package adds to ``ebbtide``, by an entry point."""

from ebbtide_train.commands.interactive_run import run_command
from ebbtide_train.commands.interactive_sessions import sessions_command
from ebbtide_train.commands.probe import probe
from ebbtide_train.commands.submit import submit_command

COMMANDS = (submit_command, probe, run_command, sessions_command)
