"""``python -m benchmarks.gpu.line.model OUT [--tiny]``: a Llama with random weights, about 1 B parameters in bf16.

Its tokenizer is the tiny model's, so nothing is downloaded. The weights are made on the GPU where there is one.
"""

import time
from pathlib import Path

import click
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ebbtide_serve.examples import tiny_model

SEED = 0
# Of the shape of Llama 3.2 1B (width 2048, 8 key-value heads); more layers and untied heads make up for the vocabulary.
WIDTH, HIDDEN, LAYERS, HEADS, KEY_VALUE_HEADS = 2048, 5632, 20, 16, 8


def make_model(out: Path) -> int:
    """Write the model's directory; gives its number of parameters."""
    tokenizer = tiny_model.train_tokenizer()
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model = _random(tokenizer, ends)
    model.generation_config = GenerationConfig(**ends)
    model.to("cpu").save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(one.numel() for one in model.parameters())


def _random(tokenizer: PreTrainedTokenizerFast, ends: dict[str, int]) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=tiny_model.VOCABULARY,
        max_position_embeddings=tiny_model.CONTEXT_TOKENS,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        **ends,
    )
    torch.manual_seed(SEED)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # see `tiny_model`: a steeper head keeps the greedy choice stable
    return model


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--tiny", is_flag=True, help="the tiny model instead")
def main(out: Path, tiny: bool) -> None:
    """Make a model with random weights in OUT."""
    began_s = time.monotonic()
    if tiny:
        tiny_model.make_model(out)
    else:
        parameters = make_model(out)
        click.echo(f"{parameters / 1e9:.2f} B parameters")
    click.echo(f"{out}: made in {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    main()
