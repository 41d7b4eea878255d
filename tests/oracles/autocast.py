"""Records autocast.safetensors: losses, outputs and gradients under torch.autocast('cpu') of torch 2.11.0.

    python3 tests/oracles/autocast.py [--compare]

Three small nets (mlp, conv, attention), each in float32 without autocast, and under autocast to bfloat16 and float16.
The forward functions below are the specification: each line is one ATen operator (README.md names them).
"""

import math

import torch
import torch.nn.functional as F
from oracle import Random, run


def mlp(p):
    hidden = F.linear(p["input"], p["w1"], p["b1"])
    hidden = F.gelu(hidden)
    hidden = F.layer_norm(hidden, [32], p["ln_w"], p["ln_b"], 1e-5)
    output = F.linear(hidden, p["w2"], p["b2"])
    return output, F.cross_entropy(output, p["target"])


def conv(p):
    hidden = F.conv2d(p["input"], p["w1"], p["b1"], stride=1, padding=1)
    hidden = F.relu(hidden)
    hidden = hidden.flatten(1)
    output = F.linear(hidden, p["w2"], p["b2"])
    return output, F.cross_entropy(output, p["target"])


def attention(p):
    batch, time, width, heads = 2, 9, 24, 3
    q, k, v = F.linear(p["input"], p["w1"], p["b1"]).split(width, dim=2)
    q, k, v = (x.view(batch, time, heads, width // heads).transpose(1, 2) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(batch, time, width)
    output = F.linear(mixed, p["w2"], p["b2"])
    return output, F.mse_loss(output, p["target"])


def parameters(random, w1, w2, fan_in1, fan_in2):
    return {
        "w1": random.uniform(w1, 1 / math.sqrt(fan_in1)),
        "b1": random.uniform(w1[:1], 0.1),
        "w2": random.uniform(w2, 1 / math.sqrt(fan_in2)),
        "b2": random.uniform(w2[:1], 0.1),
    }


def nets():
    """{name: (forward, {tensor name: tensor})}; "input" and "target" are data, the rest are trained."""
    random = Random(3)
    mlp_tensors = {
        **parameters(random, (32, 16), (10, 32), 16, 32),
        "ln_w": 1 + random.uniform((32,), 0.25),
        "ln_b": random.uniform((32,), 0.25),
        "input": random.uniform((8, 16), 2.0),
        "target": random.integers(0, 10, (8,)),
    }
    conv_tensors = {
        **parameters(random, (8, 3, 3, 3), (5, 8 * 9 * 7), 27, 8 * 9 * 7),
        "input": random.uniform((4, 3, 9, 7), 2.0),
        "target": random.integers(0, 5, (4,)),
    }
    attention_tensors = {
        **parameters(random, (72, 24), (24, 24), 24, 24),
        "input": random.uniform((2, 9, 24), 2.0),
        "target": random.uniform((2, 9, 24), 1.0),
    }
    return {"mlp": (mlp, mlp_tensors), "conv": (conv, conv_tensors), "attention": (attention, attention_tensors)}


def record():
    tensors = {}
    for net, (forward, values) in nets().items():
        for key, value in values.items():
            tensors[f"{net}.{key}"] = value
        for name, dtype in (("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
            p = {k: v.clone().requires_grad_() if v.is_floating_point() else v for k, v in values.items()}
            p["target"] = values["target"]
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                output, loss = forward(p)
            loss.backward()
            tensors[f"{net}.{name}.output"] = output
            tensors[f"{net}.{name}.loss"] = loss
            for key, value in p.items():
                if key != "target":
                    tensors[f"{net}.{name}.grad.{key}"] = value.grad
    return tensors


if __name__ == "__main__":
    run("autocast", record)
