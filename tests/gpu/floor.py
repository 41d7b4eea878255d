#!/usr/bin/env python3
"""The least time of a step of GPT-2 by part: the table of docs/guides/gpu.md.

    floor.py                   prints the table
    floor.py --check PAGE      says whether the page has it

A part takes at least its floating-point operations at the rate of the tensor cores, and at least its bytes at the rate of the memory, each
tensor read and written once by each launch. The rates are those that NVIDIA gives for an H100 SXM: 989 TFLOP/s in bf16
without sparsity, 3.35 TB/s. Launches are those of the operators that Vernier calls in bf16 O1 without CUDA graphs. A
launch costs the host about 5 us, which the GPU does not wait for as long as its own work takes longer.
"""

import collections
import pathlib
import sys

RATE, BANDWIDTH = 989e12, 3.35e12
LAYERS, WIDTH, CONTEXT, WINDOWS = 12, 768, 1024, 16
CLASSES = 50304  # 50,257, filled up to a multiple of 64
CHUNKS = 4  # the logits are computed in parts of at most 512 MB
TOKENS = CONTEXT * WINDOWS
LINEAR = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]  # of a block: in, out
WEIGHTS = LAYERS * (sum(i * o + o for i, o in LINEAR) + 4 * WIDTH) + 2 * WIDTH + (50257 + CONTEXT) * WIDTH
BF16, FP32 = 2, 4

Part = collections.namedtuple("Part", "name launches operations bytes")


def parts():
    x = TOKENS * WIDTH  # the numbers of the residual stream
    # Forward, the gradient of x and that of the weight: each has three matrices.
    products = sum(3 * BF16 * (TOKENS * i + i * o + TOKENS * o) for i, o in LINEAR)
    yield Part("products of the blocks", 12 * LAYERS, 6 * TOKENS * LAYERS * sum(i * o for i, o in LINEAR), LAYERS * products)
    # Causal: half of the scores. Backward has five products for the two of forward. It reads and writes twice as much.
    yield Part("attention", 4 * LAYERS, 3.5 * 2 * WINDOWS * CONTEXT**2 * WIDTH * LAYERS, 12 * BF16 * x * LAYERS)
    yield Part("head: its products", 3 * CHUNKS, 6 * TOKENS * WIDTH * CLASSES,
               BF16 * (3 * TOKENS * CLASSES + 3 * x + 3 * CHUNKS * CLASSES * WIDTH))
    yield Part("head: cross entropy with its gradient", 2 * CHUNKS, 0, 3 * BF16 * TOKENS * CLASSES)
    # A block has a norm of the stream and one of its sum with a branch. Both write bf16, and read its slopes backward.
    # The second one also writes the sum, reads its slopes, and writes those of the branch. The last norm is in float32.
    norm = FP32 + BF16 + (BF16 + 2 * FP32)
    added = (FP32 + BF16 + FP32 + BF16) + (BF16 + 3 * FP32 + BF16)
    yield Part("norms, with a sum and casts", 3 * (2 * LAYERS + 1), 0, x * (LAYERS * (norm + added) + 5 * FP32))
    # Forward, a product applies GELU and also writes GELU's input. Backward, a product reads that input.
    yield Part("GELU, in products", 0, 0, LAYERS * 4 * x * 2 * BF16)
    # A block adds its second branch, casts the slopes of that, and adds those of its first norm. The head casts too.
    cast = FP32 + BF16
    yield Part("other residuals and casts", 3 * LAYERS + 2, 0, x * (LAYERS * (2 * FP32 + BF16 + cast + 3 * FP32) + 2 * cast))
    # Those of the MLP are summed up by products.
    yield Part("gradients of biases", 2 * LAYERS, 0, LAYERS * BF16 * TOKENS * sum(o for _, o in LINEAR[:2]))
    yield Part("embeddings", 8, 0, 6 * FP32 * x + 4 * FP32 * 50257 * WIDTH)
    yield Part("casts of weights, and of their gradients", 2 * (8 * LAYERS + 1), 0, 2 * cast * WEIGHTS)
    yield Part("AdamW, gradient norm", 4, 0, 8 * FP32 * WEIGHTS)


def milliseconds(part):
    return 1000 * max(part.operations / RATE, part.bytes / BANDWIDTH)


def table():
    lines = ["| part of a step in bf16 | launches | operations | bytes | least time |", "| --- | --- | --- | --- | --- |"]
    every = list(parts())
    for part in sorted(every, key=milliseconds, reverse=True):
        lines.append(f"| {part.name} | {part.launches} | {part.operations / 1e12:.2f} T | {part.bytes / 1e9:.1f} GB | "
                     f"{milliseconds(part):.2f} ms |")
    lines.append(f"| together | {sum(part.launches for part in every)} | {sum(part.operations for part in every) / 1e12:.2f} T | "
                 f"{sum(part.bytes for part in every) / 1e9:.1f} GB | {sum(map(milliseconds, every)):.2f} ms |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] != ["--check"]:
        print(table(), end="")
    elif table() not in pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"):
        sys.exit(f"{sys.argv[2]} has another table than tests/gpu/floor.py:\n{table()}")
