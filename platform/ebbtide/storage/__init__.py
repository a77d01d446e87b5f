"""Bytes between the shared filesystem and memory: fast, verified, and never wrong.

From the top down; a room knows only those below it:

- `models`, `checkpoints`: what endpoints load, and what jobs save;
- `maintenance`, `device`: garbage collection, scrub and repair; files into GPU memory;
- `objects`, `posix`, `coordination`: immutable directories published by rename; files by O_DIRECT; one does it, all
  have it;
- `bandwidth`, `integrity`, `leases`, `memory`, `remote`, `safetensors`: what those stand on;
- `files`, `transport`: calls of POSIX and Linux; what every byte mover is.

`errors` and `names` are for all of them. Knows the operating system and numpy; torch only where device memory or
training state is meant. Knows neither Ray nor vLLM.
"""
