"""The first hour: `ebbtide init` writes a pool that runs on this machine, `ebbtide demo` shows one tide in minutes.

It stands on all other rooms and does what a user does: it runs their commands and reads their JSON. Nothing imports it.
"""
