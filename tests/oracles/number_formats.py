"""Records number_formats.safetensors: codes and casts of ml_dtypes, P3109 of gfloat, and blocks of torchao.

    python3 tests/oracles/number_formats.py [--compare]

Needs ml_dtypes 0.6.0, gfloat 0.5.2 and torchao 0.18.0 besides (pip install --no-deps ml_dtypes==0.6.0 torchao==0.18.0).
"""

import gfloat
import gfloat.formats
import ml_dtypes
import numpy
import torch
from oracle import Random, run
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

FORMATS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
BITS = {"e2m3": 6, "e3m2": 6, "e2m1": 4}
P3109 = ((8, 1), (8, 3), (8, 4), (8, 5), (6, 3), (5, 2), (4, 2), (3, 1))
ELEMENTS = {
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}


def codes(name):
    return numpy.arange(1 << BITS.get(name, 8), dtype=numpy.uint8).view(FORMATS[name]).astype(numpy.float32)


def numbers(random):
    """float32: any bits, ordinary numbers, and all ties of every format with both neighbours of each."""
    any_bits = random.integers(-(1 << 31), 1 << 31, (1024,)).int().numpy().view(numpy.float32)
    lists = [any_bits, random.normal((1024,), 30.0).numpy(), random.normal((512,), 1e-3).numpy()]
    lists.append(numpy.float32([0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan]))
    for name in FORMATS:
        values = codes(name)
        values = numpy.unique(values[numpy.isfinite(values) & (values >= 0)])
        ties = (values[1:] + values[:-1]) / 2
        beyond = values[-1] + (values[-1] - values[-2]) / 2
        ties = numpy.append(ties, beyond).astype(numpy.float32)
        lists += [values, ties, -ties, numpy.nextafter(ties, numpy.float32(0)), numpy.nextafter(ties, numpy.float32(1e9))]
    return numpy.unique(numpy.concatenate(lists).astype(numpy.float32).view(numpy.uint32)).view(numpy.float32)


def scalars(tensors, random):
    values = numbers(random)
    tensors["cast.numbers"] = torch.from_numpy(values.copy())
    for name, dtype in FORMATS.items():
        tensors[f"decode.{name}"] = torch.from_numpy(codes(name).copy())
        # fp6 and fp4 saturate, and have no NaN.
        with numpy.errstate(invalid="ignore", over="ignore"):
            cast = numpy.where(numpy.isnan(values), numpy.float32(0), values).astype(dtype)
        tensors[f"cast.{name}"] = torch.from_numpy(cast.view(numpy.uint8).copy())
    scales = numpy.arange(256, dtype=numpy.uint8).view(ml_dtypes.float8_e8m0fnu).astype(numpy.float32)
    tensors["decode.e8m0"] = torch.from_numpy(scales.copy())


def p3109(tensors):
    for bits, precision in P3109:
        for domain, suffix in ((gfloat.Domain.Extended, ""), (gfloat.Domain.Finite, "_finite")):
            info = gfloat.formats.format_info_p3109(bits, precision, gfloat.Signedness.Signed, domain)
            values = [gfloat.decode_float(info, code).fval for code in range(1 << bits)]
            tensors[f"decode.k{bits}p{precision}{suffix}"] = torch.tensor(values, dtype=torch.float32)


def blocks(tensors, random):
    """bfloat16 numbers, for which torchao's rceil is exact; magnitudes differ by row."""
    spread = torch.exp2(random.integers(-20, 20, (32, 1)).float())
    x = (random.normal((32, 128)) * spread).bfloat16().float()
    x[0, :32] = 0
    tensors["block.x"] = x
    for name, element in ELEMENTS.items():
        for rule in ("FLOOR", "CEIL", "EVEN", "RCEIL"):
            source = x.bfloat16() if rule == "RCEIL" else x
            scale, data = to_mx(source, element, 32, ScaleCalculationMode[rule])
            back = to_dtype(data, scale, element, 32, torch.float32)
            tensors[f"block.{name}.{rule.lower()}"] = back.reshape(x.shape)


def nvfp4(tensors, random):
    """The exact order: block scales are the e4m3 nearest to amax * 448 / gmax, which ml_dtypes' scalars round right."""
    x = (random.normal((32, 64)) * torch.exp2(random.integers(-6, 6, (32, 1)).float())).float().numpy()
    largest = numpy.abs(x).max()
    tensor_scale = numpy.float32(float(largest) / (448.0 * 6.0))
    out = numpy.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(0, x.shape[1], 16):
            block = x[i, j : j + 16]
            code = ml_dtypes.float8_e4m3fn(float(numpy.abs(block).max()) * 448.0 / float(largest))
            scale = numpy.float32(float(code) * float(tensor_scale))
            q = numpy.clip(block / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(numpy.float32)
            out[i, j : j + 16] = q * scale
    tensors["nvfp4.x"] = torch.from_numpy(x)
    tensors["nvfp4.y"] = torch.from_numpy(out)


def record():
    random = Random(43)
    tensors = {}
    scalars(tensors, random)
    p3109(tensors)
    blocks(tensors, random)
    nvfp4(tensors, random)
    return tensors


if __name__ == "__main__":
    run("number_formats", record)
