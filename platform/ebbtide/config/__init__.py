"""What a user may write down about a pool: one YAML file, its models, and errors that name line and column.

Knows the words of :mod:`ebbtide.pool`, and neither Ray nor vLLM nor torch. Start with ``pool_file`` (the whole file),
then ``loading.pool_file_loader`` (text to models), then ``checks.machine_checks`` (does the world have what the file
names?).
"""
