#!/usr/bin/env python3
"""Make the model that the engine tests serve: a random Llama small enough to start on any machine, without a download.

What an engine does when it dies does not depend on what the model knows, so the weights are random (from a fixed seed:
two folders made with the same torch hold the same numbers, and greedy answers can be compared between runs). The
vocabulary is the 256 bytes and four special tokens. The folder takes about 1 MB.

    python make_tiny_model.py FOLDER [--layers N] [--hidden N] [--max-len N] [--seed N]

Run it with the interpreter of an engine environment: torch, transformers and tokenizers come with vLLM.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SPECIAL = ("<s>", "</s>", "<unk>", "<pad>")


def make_tokenizer(folder: Path) -> dict[str, int]:
    """Write a tokenizer whose tokens are single bytes; gives its vocabulary, token to number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    fast.save_pretrained(str(folder))
    return vocabulary


def make_model(folder: Path, vocabulary: dict[str, int], *, layers: int, hidden: int, max_len: int, seed: int) -> None:
    """Write config and bfloat16 weights: `layers` layers of width `hidden`, a context of `max_len` tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=max_len,
        bos_token_id=vocabulary["<s>"],
        eos_token_id=vocabulary["</s>"],
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="make a tiny random Llama for engine tests")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128, help="width, a multiple of 128 (default 128)")
    parser.add_argument("--max-len", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        vocabulary = make_tokenizer(options.folder)
    except ImportError as error:
        print(
            f"{error}. Run this with the interpreter of an engine environment: tools/engine_env.py path VERSION",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        print(f"cannot write the model: {error}. Choose a folder that can be written.", file=sys.stderr)
        return 2
    make_model(
        options.folder,
        vocabulary,
        layers=options.layers,
        hidden=options.hidden,
        max_len=options.max_len,
        seed=options.seed,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
