"""The commands that this room adds to ``ebbtide``."""

from ebbtide_autoscaler.command_hold import park, resume
from ebbtide_autoscaler.command_logs import logs
from ebbtide_autoscaler.command_operate import cancel, drain, freeze, undrain, unfreeze
from ebbtide_autoscaler.command_plan import plan
from ebbtide_autoscaler.command_pool import down, env, up
from ebbtide_autoscaler.command_simulate import simulate
from ebbtide_autoscaler.command_status import status

COMMANDS = (up, plan, simulate, status, logs, park, resume, cancel, drain, undrain, freeze, unfreeze, down, env)
