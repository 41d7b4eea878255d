"""Records matrix_units.safetensors: sums of matrix units, those of NVIDIA as GPUs computed them, and of CPUs by fractions.

    python3 tests/oracles/matrix_units.py SOURCES [--compare]

SOURCES has two repositories: MATLAB-tensor-core (github.com/north-numerical-computing, commit b12b5a7, BSD-2-Clause, from
Khattak and Mikaitis), whose model_validation has inputs and outputs of GPUs, and MMA-Sim (github.com/microsoft, commit
c785138, MIT), which computes those of AMD and of block scales. Each unit and format has rows a, b, c and y = a b + c of
200 sums.
"""

import sys
from fractions import Fraction

import torch
from oracle import Random, run

SOURCES = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "."
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float32, "e5m2": torch.float32}
# The folder of each unit, its formats, and those whose outputs in float16 are published too.
GPUS = {
    "v100": ("V100", ["fp16"], ["fp16"]),
    "a100": ("A100", ["fp16", "bf16", "tf32"], ["fp16"]),
    "ada": ("Ada", ["fp16", "bf16", "tf32", "e4m3", "e5m2"], ["fp16", "e4m3", "e5m2"]),
    "h100": ("H100", ["fp16", "bf16", "tf32", "e4m3", "e5m2"], ["fp16"]),
    "b200": ("B200", ["fp16", "bf16", "tf32"], ["fp16"]),
}
ROWS = slice(0, 5000, 25)


def numbers(path, base=16):
    """Rows of numbers, of which the file has the bits in float32."""
    with open(path) as file:
        rows = [[int(word, base) for word in line.split()] for line in file][ROWS]
    whole = torch.tensor(rows, dtype=torch.int64)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32).view(torch.float32)


def record_gpus(tensors):
    for unit, (folder, formats, halves) in GPUS.items():
        for name in formats:
            place = name.upper() if name.startswith("e") else name
            at = f"{SOURCES}/MATLAB-tensor-core/model_validation/{folder}/{place}/"
            key = f"{unit}.{name}."
            for operand in "ab":
                exact = numbers(f"{at}{operand}_{folder}_{place}.txt")
                tensors[key + operand] = exact.to(DTYPES[name])
                assert torch.equal(tensors[key + operand].float(), exact)
            tensors[key + "c"] = numbers(f"{at}c_{folder}_fp32.txt", 2)
            tensors[key + "y"] = numbers(f"{at}d_{folder}_fp32.txt", 2)
            if name in halves:
                tensors[key + "half"] = numbers(f"{at}d_{folder}_fp16.txt", 2)


def record_amd(tensors):
    sys.path.insert(0, f"{SOURCES}/MMA-Sim")
    from mmasim.simulator import amd

    pairwise = amd.pairwise_dot  # it asserts float32, and the unit hands it the 16-bit inputs
    amd.pairwise_dot = lambda a, b, *flushed: pairwise(a.float(), b.float(), *flushed)
    random = Random(64)
    units = [
        ("cdna2", "fp16", "CDNA2", "f32_16x16x16f16", torch.float16),
        ("cdna2", "bf16", "CDNA2", "f32_16x16x16bf16_1k", torch.bfloat16),
        ("cdna3", "fp16", "CDNA3", "f32_16x16x16_f16", torch.float16),
        ("cdna3", "bf16", "CDNA3", "f32_16x16x16_bf16", torch.bfloat16),
        ("cdna3", "tf32", "CDNA3", "f32_16x16x8_xf32", torch.float32),
        ("cdna3", "e4m3", "CDNA3", "f32_16x16x32_fp8_fp8", torch.float8_e4m3fnuz),
    ]
    for unit, name, architecture, instruction, dtype in units:
        op = amd.mfma(architecture, instruction)
        spread = 3 if name == "e4m3" else 8  # without subnormal numbers of fp8, which OCP's format has elsewhere

        def drawn(shape):
            x = random.uniform(shape).sign() * (1 + random.uniform(shape).abs())
            x = x * torch.exp2(random.integers(-spread, spread + 1, shape).float())
            return torch.where(random.integers(0, 8, shape) == 0, torch.zeros(shape), x)

        a, b = drawn((op.m, op.k)), drawn((op.k, op.n))
        if name == "tf32":
            a, b = [(x.view(torch.int32) >> 13 << 13).view(torch.float32) for x in (a, b)]
        a, b, c = a.to(dtype), b.to(dtype), drawn((op.m, op.n))
        y = op(a, b, c)
        key = f"{unit}.{name}."
        pairs = [(i, j) for i in range(op.m) for j in range(op.n)][:200]
        tensors[key + "a"] = torch.stack([a[i].float() for i, _ in pairs]).to(DTYPES[name])
        tensors[key + "b"] = torch.stack([b[:, j].float() for _, j in pairs]).to(DTYPES[name])
        tensors[key + "c"] = torch.stack([c[i, j] for i, j in pairs]).unsqueeze(1)
        tensors[key + "y"] = torch.stack([y[i, j] for i, j in pairs]).unsqueeze(1)


def record_scaled(tensors):
    """nvfp4 and mxfp4 of a B200: two instructions of 64 products. `start` has a grid that the first step of a sum keeps."""
    sys.path.insert(0, f"{SOURCES}/MMA-Sim")
    from mmasim.simulator.arithmetic import nv_fused_dot_add_with_block_scale as step

    random = Random(66)
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    for name, block, dtype in [("nvfp4", 16, torch.float8_e4m3fn), ("mxfp4", 32, torch.float8_e8m0fnu)]:
        rows = {}
        for operand in "ab":
            shape = (200, 128)
            numbers = levels[random.integers(0, 8, shape).long()] * random.uniform(shape).sign()
            scales = torch.exp2(random.integers(-8, 8, (200, 128 // block)).float())
            if block == 16:
                scales = scales * (1 + random.integers(0, 8, scales.shape).float() / 8)
            rows[operand], rows[operand + "_scale"] = numbers, scales.to(dtype)
        rows["start"] = (random.uniform((200, 1)) * 2.0**10 * 2.0**12).round() * 2.0**-12
        sums = []
        for i in range(200):
            y = rows["start"][i, 0]
            for first in (0, 64):
                at, of = slice(first, first + 64), slice(first // block, (first + 64) // block)
                y = step(rows["a"][i, at], rows["b"][i, at], y, rows["a_scale"][i, of], rows["b_scale"][i, of], 35)
            sums.append(y)
        rows["y"] = torch.stack(sums).unsqueeze(1)
        for key, tensor in rows.items():
            tensors[f"b200.{name}.{key}"] = tensor if key in ("start", "y") else tensor.bfloat16()


def rounded(x, to_odd=False):
    """To float32, subnormal results to 0."""
    if x == 0:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    whole = abs(x) / unit
    count = int(whole) | (int(whole) != whole) if to_odd else round(whole)
    y = count * unit * (1 if x > 0 else -1)
    return y if abs(y) >= Fraction(2) ** -126 else Fraction(0)


def by_pairs(a, b, c):
    """vdpbf16ps, Intel's manual."""
    for i in range(0, len(a), 2):
        c = rounded(a[i + 1] * b[i + 1] + c)
        c = rounded(a[i] * b[i] + c)
    return c


def by_tiles(a, b, c):
    """tdpbf16ps, Intel's manual: instructions of 32 products."""
    for i in range(0, len(a), 32):
        even = odd = Fraction(0)
        for j in range(i, i + 32, 2):
            even, odd = rounded(a[j] * b[j] + even), rounded(a[j + 1] * b[j + 1] + odd)
        c = rounded(c + rounded(even + odd))
    return c


def to_odd(a, b, c):
    """bfdot with EBF = 0, Arm's manual."""
    for i in range(0, len(a), 2):
        c = rounded(c + rounded(a[i] * b[i] + a[i + 1] * b[i + 1], True), True)
    return c


def record_cpus(tensors):
    random = Random(65)
    for unit, k, rule in [("avx512_bf16", 16, by_pairs), ("amx", 64, by_tiles), ("arm_bfdot", 16, to_odd)]:

        def drawn(shape, spread):
            x = random.uniform(shape, 2.0) * torch.exp2(random.integers(-spread, spread + 1, shape).float())
            return x.bfloat16()

        # The last rows have products near the least normal number of float32.
        a, b = [torch.cat([drawn((150, k), 6), drawn((50, k), 4) * 2.0**-62]) for _ in "ab"]
        c = torch.cat([drawn((150, 1), 6).float() * 1.1, torch.zeros((50, 1))])
        exact = [[[Fraction(float(x)) for x in row] for row in operand] for operand in (a, b, c)]
        y = [[float(rule(x, w, start[0]))] for x, w, start in zip(*exact)]
        for name, tensor in zip("abcy", (a, b, c, torch.tensor(y, dtype=torch.float64).float())):
            tensors[f"{unit}.bf16.{name}"] = tensor


def record():
    tensors = {}
    record_gpus(tensors)
    record_amd(tensors)
    record_scaled(tensors)
    record_cpus(tensors)
    return tensors


if __name__ == "__main__":
    run("matrix_units", record)
