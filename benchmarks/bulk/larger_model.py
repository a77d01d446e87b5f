"""``python -m benchmarks.bulk.larger_model OUT --layers N``: the model whose loads are measured.

A process of its own makes it, since transformers take seconds to import and nothing else here needs them.
"""

import argparse
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from ebbtide_serve.examples.tiny_model import make_model


def make_larger(out: Path, *, layers: int) -> None:
    """The tiny model's tokenizer with a larger model: see the module. Layers are of 122 MB each."""
    if not make_model(out):
        return
    config = LlamaConfig.from_pretrained(out)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 2048, 8192, layers
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 32, 8, 64
    LlamaForCausalLM(config).bfloat16().save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    given = parser.parse_args()
    make_larger(given.out, layers=given.layers)
