"""The commands that this room adds to ``ebbtide``."""

from ebbtide_quickstart.demo import demo
from ebbtide_quickstart.init import init

COMMANDS = (init, demo)
