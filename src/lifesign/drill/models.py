"""Model folders for drills: a tiny random Llama, and the ways in which such a folder can be broken.

What an engine does when it dies doesn't depend on what its model knows. The good folder is about 1 MB, made in a fraction of
a second by the standard library alone (no torch, no download), and read by vLLM 0.19 to 0.32 like any other.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

HIDDEN, INNER, HEADS, HEAD_DIM, LAYERS = 128, 256, 2, 64, 2
SPECIAL = ("<s>", "</s>", "<unk>", "<pad>")
WEIGHTS = "model.safetensors"
LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 1065536\n"

Shape = tuple[int, ...]


def make(folder: Path, name: str) -> Path:
    """Write the folder that `name` (a key of FOLDERS) describes below `folder`; KeyError is a mistake in the vocabulary."""
    target = folder / name
    if not target.exists():
        target.mkdir(parents=True)
        _write_good(target)
        FOLDERS[name](target)
    return target


def _byte_symbols() -> list[str]:
    """The 256 printable characters that byte-level tokenizers use for the bytes (the scheme of GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = (chr(0x100 + number) for number in range(256))
    return sorted(chr(byte) if byte in plain else next(spare) for byte in range(256))


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "max_position_embeddings": 1024,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 256 + len(SPECIAL),
    }


def _write_tokenizer(folder: Path) -> None:
    symbols = [*_byte_symbols(), *SPECIAL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, **flags} for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": None,
        "decoder": {**bytes_, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: number for number, symbol in enumerate(symbols)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "model_max_length": 1024,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _shapes() -> dict[str, Shape]:
    attention = HEADS * HEAD_DIM
    vocabulary = 256 + len(SPECIAL)
    shapes: dict[str, Shape] = {
        "lm_head.weight": (vocabulary, HIDDEN),
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (attention, HIDDEN) for name in "qkv"}
        shapes |= {
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, attention),
            f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
        }
    return shapes


def _tensor(chance: random.Random, shape: Shape) -> bytes:
    """bfloat16 numbers: ones for norms, else about +-0.01 (sign and mantissa random, exponent fixed)."""
    count = 1
    for size in shape:
        count *= size
    if len(shape) == 1:
        return struct.pack("<H", 0x3F80) * count
    data = bytearray(chance.randbytes(2 * count))
    for index in range(0, 2 * count, 2):
        data[index] &= 0x7F
        data[index + 1] = 0x3C | (data[index + 1] & 0x80)
    return bytes(data)


def _write_weights(folder: Path, shapes: dict[str, Shape]) -> None:
    """A safetensors file: length of the header (8 bytes), the header (JSON), the numbers."""
    chance = random.Random(0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for name, shape in shapes.items():
        blob = _tensor(chance, shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _write_good(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(_config(), indent=2), encoding="utf-8")
    _write_tokenizer(folder)
    _write_weights(folder, _shapes())


def _change_config(folder: Path, **changes: object) -> None:
    (folder / "config.json").write_text(json.dumps(_config() | changes, indent=2), encoding="utf-8")


def _truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def _without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def _without_layer(folder: Path) -> None:
    _write_weights(folder, {name: shape for name, shape in _shapes().items() if ".layers.1." not in name})


FOLDERS: dict[str, Callable[[Path], object]] = {
    "good": lambda folder: None,
    "long": lambda folder: _change_config(folder, max_position_embeddings=65536),
    "no-config": lambda folder: (folder / "config.json").unlink(),
    "bad-config": lambda folder: (folder / "config.json").write_text("{ not json", encoding="utf-8"),
    "unknown-architecture": lambda folder: _change_config(folder, architectures=["MysteryForCausalLM"]),
    "unknown-type": lambda folder: _change_config(folder, model_type="mystery", architectures=["MysteryForCausalLM"]),
    "wrong-shape": lambda folder: _change_config(folder, hidden_size=2 * HIDDEN),
    "no-weights": lambda folder: (folder / WEIGHTS).unlink(),
    "truncated": _truncate,
    "garbage": lambda folder: (folder / WEIGHTS).write_bytes(random.Random(1).randbytes(100_000)),
    "lfs-pointer": lambda folder: (folder / WEIGHTS).write_text(LFS_POINTER, encoding="ascii"),
    "missing-layer": _without_layer,
    "no-tokenizer": _without_tokenizer,
}
