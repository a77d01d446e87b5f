"""The commands that this room adds to ``ebbtide``."""

from ebbtide_autoscaler.commands.hold import park, resume
from ebbtide_autoscaler.commands.logs import logs
from ebbtide_autoscaler.commands.operate import cancel, drain, freeze, undrain, unfreeze
from ebbtide_autoscaler.commands.plan import plan
from ebbtide_autoscaler.commands.pool import down, env, up
from ebbtide_autoscaler.commands.status import status

COMMANDS = (up, plan, status, logs, park, resume, cancel, drain, undrain, freeze, unfreeze, down, env)
