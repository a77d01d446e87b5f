"""The ``ebbtide`` command: its own commands by name, those of other roots by entry point."""
