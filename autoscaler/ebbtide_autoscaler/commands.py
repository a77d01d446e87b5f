"""The commands that this room adds to ``ebbtide``."""

from ebbtide_autoscaler.command_pool import cancel, down, env, plan, up
from ebbtide_autoscaler.command_status import status

COMMANDS = (up, plan, status, cancel, down, env)
