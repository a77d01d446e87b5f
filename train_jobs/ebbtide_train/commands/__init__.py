"""What this package adds to `ebbtide`: submit, run, sessions, probe, and what only they need.

May know every room, imported by none.
"""
