"""The safe-point session: what turns an ordinary PyTorch loop into a job that can step aside and lose nothing.

It runs without Ray and without vLLM. It knows torch, the shared run directory, the messages of
``ebbtide.client.messages`` and ``ebbtide.snapshot``; who carries its messages to the arbiter is a `gate` given to it.
"""
