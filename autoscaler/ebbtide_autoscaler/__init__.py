"""Who gets which GPU: a pure core that decides, and a shell around it that looks, journals and acts.

A room imports only rooms below it, from the command line down to the core (`layers` in pyproject.toml; `cluster` and
`forecast` are not among them yet). Each says in its own first line what belongs there.
"""
