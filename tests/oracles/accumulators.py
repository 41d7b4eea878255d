"""Records accumulators.safetensors: MMA-Sim's matrix units of Hopper and Ada, and other accumulators in exact fractions.

    python3 tests/oracles/accumulators.py [--compare]

Needs ml_dtypes 0.6.0, mmasim 2.1.1 and ninja besides (pip install --no-deps ml_dtypes==0.6.0 mmasim==2.1.1). Units of
MMA-Sim are checked against the fractions too.
"""

import struct
from fractions import Fraction

import ml_dtypes
import numpy
import torch
from mmasim.nv_ptx import MMA, WGMMA
from oracle import Random, run

TORCH_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
LEAST = {"e4m3": -6, "e5m2": -14, "bf16": -126, "fp16": -14, "e7m16": -62}


def exponent(x):
    """floor(log2 |x|)"""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def cut(x, unit):
    """Toward zero, to a multiple of 2^unit."""
    power = Fraction(2) ** unit
    return int(x / power) * power


def step(total, products, mantissa):
    """products: pairs of a number and its exponent, which is not that of the normalised number."""
    terms = [(x, e) for x, e in products if x != 0]
    if total != 0:
        terms.append((total, max(exponent(total), -126)))
    if not terms:
        return Fraction(0)
    unit = max(e for _, e in terms) - mantissa
    total = sum(cut(x, unit) for x, _ in terms)
    if total == 0:
        return total
    return cut(total, max(exponent(total), -126) - mantissa)


def dot(a, b, least, mantissa, chunk, promote_every=0):
    def of(x, least_exponent):
        return (x, max(exponent(x), least_exponent)) if x != 0 else (x, 0)

    a = [of(Fraction(float(x)), least[0]) for x in a]
    b = [of(Fraction(float(x)), least[1]) for x in b]
    partial, total = Fraction(0), numpy.float32(0)
    for start in range(0, len(a), chunk):
        pairs = zip(a[start : start + chunk], b[start : start + chunk])
        partial = step(partial, [(x * y, ex + ey) for (x, ex), (y, ey) in pairs], mantissa)
        if promote_every and (start + chunk) % promote_every == 0:
            total, partial = total + numpy.float32(float(partial)), Fraction(0)
    return total + numpy.float32(float(partial)) if promote_every else numpy.float32(float(partial))


def matmul(a, b, least, mantissa, chunk, promote_every=0):
    rows = [[dot(x, y, least, mantissa, chunk, promote_every) for y in b.T.numpy()] for x in a.numpy()]
    return torch.from_numpy(numpy.array(rows, dtype=numpy.float32))


def numbers(random, shape, spread):
    return random.normal(shape) * torch.exp2(random.integers(-spread, spread + 1, shape).float())


def unit(tensors, random, name, op, formats, k):
    """Several instructions one behind the other, each of which adds to the result of the one before."""
    m, n, steps = op.m, op.n, 5
    a = numbers(random, (m, k * steps), 5).to(TORCH_TYPES[formats[0]])
    b = numbers(random, (k * steps, n), 5).to(TORCH_TYPES[formats[1]])
    a[:, k : k + 7] = 0
    y = torch.zeros((m, n))
    for i in range(steps):
        y = op(a[:, i * k : (i + 1) * k], b[i * k : (i + 1) * k], y)
    a, b, y = a[:24].float(), b.float(), y[:24]
    chunk = min(k, 16 if name.startswith("ada") else 32)
    exact = matmul(a[:8], b, [LEAST[x] for x in formats], 13, chunk)
    assert torch.equal(exact, y[:8]), name
    tensors[name + ".a"], tensors[name + ".b"], tensors[name + ".y"] = a, b, y


def wide(x):
    """float32 with 16 fraction bits; the exponents here are those of any format."""
    bits = [struct.unpack("<I", struct.pack("<f", float(v)))[0] & ~0x7F for v in x.flatten()]
    return torch.tensor([struct.unpack("<f", struct.pack("<I", v))[0] for v in bits]).reshape(x.shape)


CASTS = {
    "bf16": lambda x: x.bfloat16().float(),
    "fp16": lambda x: x.half().float(),
    "e4m3": lambda x: torch.from_numpy(x.numpy().astype(ml_dtypes.float8_e4m3fn).astype(numpy.float32)),
    "e7m16": wide,
}


def exact(tensors, random, name, mantissa, chunk, promote_every=0):
    a = CASTS[name](numbers(random, (6, 150), 6 if name == "e4m3" else 10).clamp(-448, 448))
    b = CASTS[name](numbers(random, (150, 5), 6 if name == "e4m3" else 10).clamp(-448, 448))
    key = "exact." + name
    tensors[key + ".a"], tensors[key + ".b"] = a, b
    tensors[key + ".y"] = matmul(a, b, [LEAST[name]] * 2, mantissa, chunk, promote_every)


def record():
    random = Random(44)
    tensors = {}
    unit(tensors, random, "hopper.e4m3", WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3"), ("e4m3", "e4m3"), 32)
    unit(tensors, random, "hopper.e5m2", WGMMA("Hopper", "m64n8k32.f32.e5m2.e5m2"), ("e5m2", "e5m2"), 32)
    unit(tensors, random, "hopper.mixed", WGMMA("Hopper", "m64n8k32.f32.e4m3.e5m2"), ("e4m3", "e5m2"), 32)
    unit(tensors, random, "ada.e4m3", MMA("Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32"), ("e4m3", "e4m3"), 32)
    exact(tensors, random, "bf16", 13, 16, 64)
    exact(tensors, random, "fp16", 10, 8)
    exact(tensors, random, "e4m3", 23, 32, 32)
    exact(tensors, random, "e7m16", 16, 4)
    return tensors


if __name__ == "__main__":
    run("accumulators", record)
