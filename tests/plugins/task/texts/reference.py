"""The network of task/text by torch.nn.TransformerEncoder, on the weights and tokens of a test.

    reference.py LAYERS HEADS

Reads weights.safetensors and batch.safetensors (tokens, outputs) in this folder; fails where the outputs differ.
"""

import sys

import torch
from safetensors.torch import load_file
from torch import nn

PADDING = 1
OF_LAYER = {"ln_1": "norm1", "ln_2": "norm2", "up": "linear1", "down": "linear2", "out": "self_attn.out_proj"}


def renamed(name):
    part, kind = name.split(".")
    return f"self_attn.in_proj_{kind}" if part == "qkv" else f"{OF_LAYER[part]}.{kind}"


def outputs(weights, tokens, layers, heads):
    width = weights["position"].shape[1]
    x = nn.functional.embedding(tokens, weights["embedding.weight"]) + weights["position"][: tokens.shape[1]]
    is_padding = tokens == PADDING
    for i in range(layers):
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
        )
        begin = f"blocks.{i}."
        layer.load_state_dict({renamed(k[len(begin) :]): v for k, v in weights.items() if k.startswith(begin)})
        x = layer(x, src_key_padding_mask=is_padding)
    x = nn.functional.layer_norm(x, [width], weights["ln.weight"], weights["ln.bias"])
    means = torch.stack([row[~padding].mean(0) for row, padding in zip(x, is_padding)])
    y = nn.functional.linear(means, weights["last.weight"], weights["last.bias"])
    if "target_mean" not in weights:
        return y
    return y.squeeze(1).double() * weights["target_deviation"] + weights["target_mean"]


def main(layers, heads):
    batch = load_file("batch.safetensors")
    found = outputs(load_file("weights.safetensors"), batch["tokens"], layers, heads)
    torch.testing.assert_close(found, batch["outputs"], rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
