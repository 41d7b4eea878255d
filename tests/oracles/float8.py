"""Records float8.safetensors: fp8 casts of ml_dtypes, and linear layers in fp8 of torchao on the CPU (emulated).

    python3 tests/oracles/float8.py [--compare]

Needs ml_dtypes 0.6.0 and torchao 0.18.0 besides (pip install --no-deps ml_dtypes==0.6.0 torchao==0.18.0).
"""

import dataclasses

import ml_dtypes
import numpy
import torch
from oracle import Random, run
from torchao.float8.config import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear

FORMATS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def numbers(random):
    """float32: any bits, numbers of ordinary size, and all ties between two neighbours of either format."""
    any_bits = random.integers(-(1 << 31), 1 << 31, (4096,)).int().numpy().view(numpy.float32)
    ordinary = random.normal((4096,), 30.0).numpy()
    small = random.normal((2048,), 1e-3).numpy()
    lists = [any_bits, ordinary, small, numpy.float32([0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan])]
    for dtype, largest in FORMATS.values():
        codes = numpy.arange(128, dtype=numpy.uint8).view(dtype).astype(numpy.float32)
        codes = codes[numpy.isfinite(codes)]
        ties = (codes[1:] + codes[:-1]) / 2
        lists += [codes, ties, -ties, numpy.nextafter(ties, numpy.float32(0)), numpy.nextafter(ties, numpy.float32(1e9))]
    return numpy.concatenate(lists).astype(numpy.float32)


def casts(tensors, random):
    values = numbers(random)
    tensors["cast.numbers"] = torch.from_numpy(values)
    for name, (dtype, largest) in FORMATS.items():
        with numpy.errstate(invalid="ignore"):
            codes = numpy.clip(values, -largest, largest).astype(dtype)
        tensors[f"cast.{name}"] = torch.from_numpy(codes.view(numpy.uint8).copy())


def linear(tensors, random, name):
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(name), emulate=True)
    plain = torch.nn.Linear(96, 48, bias=False)
    plain.weight.data = random.normal((48, 96), 0.1).bfloat16()
    layer = Float8Linear.from_float(plain, config)
    x = random.normal((5, 16, 96), 2.0).bfloat16().requires_grad_()
    g = random.normal((5, 16, 48), 1e-3).bfloat16()
    y = layer(x)
    y.backward(g)
    parts = {"x": x, "w": layer.weight, "g": g, "y": y, "dx": x.grad, "dw": layer.weight.grad}
    tensors.update({f"linear.{name}.{key}": value for key, value in parts.items()})


def record():
    random = Random(11)
    tensors = {}
    casts(tensors, random)
    for name in RECIPES:
        linear(tensors, random, name)
    return tensors


if __name__ == "__main__":
    run("float8", record)
