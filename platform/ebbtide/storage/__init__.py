"""Bytes between the shared filesystem and memory: fast, verified, and never wrong.

Three floors, each knowing only those below it:

- *transport*: ranges of a file into memory and back (``posix``, ``gds``), with buffers that live as
  long as the process;
- *object*: immutable directories of plain safetensors with chunk hashes, published by rename and named by refs;
- *models*: what an endpoint loads, imported once however many nodes ask.

Knows the operating system and numpy; torch only where device memory is meant. Knows neither Ray nor vLLM.
"""
