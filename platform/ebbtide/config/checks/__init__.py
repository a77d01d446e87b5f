"""Whether this machine has what a valid file names: directories, entrypoints, secrets.

May read files, imports no user's code. Rooms above add their own checks.
"""
