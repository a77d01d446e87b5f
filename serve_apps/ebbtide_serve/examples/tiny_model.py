"""Make a small but real language model on disk: ``python -m ebbtide_serve.examples.tiny_model OUT``.

A Llama of 8.5 million parameters in bf16 with random weights from a fixed seed, and a byte-pair tokenizer trained on
the Python standard library found on this machine, so nothing is downloaded. It answers with nonsense, at a real
engine's cost per token. The directory appears by one rename: if it is there, it is complete, and it is left alone.

Not guaranteed: the same tokenizer under another version of Python, whose library has other text.
"""

import argparse
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 8192
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_TOKENS = 4096
SEED = 0


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template, trained on the standard library's sources (3 to 7 s)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(str(f) for pattern in ("*.py", "asyncio/*.py", "email/*.py") for f in library.glob(pattern))
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(files, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def random_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The model, in bf16 on the CPU; torch's global random state is left as it was."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT_TOKENS,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        # Random weights give nearly uniform logits; a steeper head keeps the greedy choice stable across runs.
        model.lm_head.weight.mul_(8)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def make_model(out: Path) -> bool:
    """Write the model directory ``out``; True if it was made now, False if it was there already."""
    if (out / "config.json").exists():
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        tokenizer = train_tokenizer()
        random_llama(tokenizer).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(out)
        except OSError:
            if not (out / "config.json").exists():
                raise
            return False  # another process was faster; its directory is as good as ours
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a small random Llama model directory.")
    parser.add_argument("out", type=Path, help="directory to make; left alone if it is there")
    out = parser.parse_args().out
    made = make_model(out)
    size_bytes = sum(os.path.getsize(f) for f in out.iterdir())
    print(f"{out}: {'made' if made else 'was there'}, {size_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
