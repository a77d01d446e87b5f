"""The commands of the platform itself, one module each (and the store that three of them open).

Imported only when asked for.
"""
