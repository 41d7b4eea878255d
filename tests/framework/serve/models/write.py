#!/usr/bin/env python3
"""Writes gpt2/, a GPT-2 of a few thousand weights whose tokens are bytes. Needs torch and transformers.

    tests/framework/serve/models/write.py
"""
import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).parent / "gpt2"


def characters():
    """Returns the character that stands for each byte in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=257, n_positions=512, n_embd=8, n_layer=1, n_head=2, bos_token_id=256, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(HERE)
    names = characters()
    vocab = {names[byte]: byte for byte in range(256)} | {"<|endoftext|>": 256}
    end = {"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                           "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                           "merges": []}}
    (HERE / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
