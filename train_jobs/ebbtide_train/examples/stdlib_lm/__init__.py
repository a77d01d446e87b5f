"""A small Llama-style language model, trained on the sources of Python's own standard library.

Real text that every machine with Python has, so nothing is downloaded. ``train`` is the job; ``build`` gives its
parts to whoever wants to train them another way.
"""

from ebbtide_train.examples.stdlib_lm.train import build, train

__all__ = ["build", "train"]
