"""What a user may write down about a pool: one YAML file, its models, and errors that name line and column.

Knows the words of :mod:`ebbtide.pool`, and neither Ray nor vLLM nor torch. Start with ``root.py`` (the whole
file), then ``load.py`` (text to models), then ``check.py`` (does the world have what the file names?).
"""
