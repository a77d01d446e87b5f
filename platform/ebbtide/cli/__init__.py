"""The ``ebbtide`` command: a skeleton that the rooms add their commands to by entry points."""
