#!/usr/bin/env python3
"""Converts GPT-2 as it is published into weights of task/gpt. Needs Python's standard library only.

    python3 convert.py FILE... NEW
    vernier train run.toml --set run.init_from=NEW

FILE... are the safetensors files of one model, all shards if there are several. NEW is the safetensors file to write.
It must not exist. The script removes "transformer." before the names, transposes weights that were made Linear
([outputs, inputs]) back into GPT-2's Conv1D ([inputs, outputs]), and leaves out the causal masks and a head that equals
the token embedding. It refuses any other tensor that is missing, unknown or of another shape.

The way back needs no conversion: `vernier checkpoint export RUN weights.safetensors` writes GPT-2's names and shapes.
model.py beside this file loads them into PyTorch.
"""

import array
import json
import math
import os
import struct
import sys

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def refuse(path, reason):
    sys.exit(f"convert.py: {path}: {reason}")


def read(path):
    """The tensors of a safetensors file by name: (dtype, shape, bytes)."""
    tensors = {}
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > os.path.getsize(path):
                raise ValueError
            header, data = json.loads(file.read(length)), memoryview(file.read())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            tensors[name] = dtype, shape, data[begin:end]
            if len(data[begin:end]) != SIZES[dtype] * math.prod(shape):
                raise ValueError
    except OSError as error:
        refuse(path, error.strerror)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        refuse(path, "is not a safetensors file with tensors of " + ", ".join(SIZES))
    return tensors


def write(path, tensors):
    """Writes a safetensors file completely or not at all. Wide types come first, so every tensor is aligned."""
    names = sorted(tensors, key=lambda name: (-SIZES[tensors[name][0]], name))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(path + ".part", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in names:
                file.write(tensors[name][2])
        os.rename(path + ".part", path)
    except OSError as error:
        if os.path.exists(path + ".part"):
            os.remove(path + ".part")
        refuse(path, error.strerror)


def transposed(tensor):
    dtype, (rows, columns), data = tensor
    values = array.array({1: "B", 2: "H", 4: "I", 8: "Q"}[SIZES[dtype]], bytes(data))
    return dtype, (columns, rows), b"".join(values[column::columns].tobytes() for column in range(columns))


def shapes_of(layers, width, vocabulary, context):
    """The shapes of task/gpt by name (model.cpp)."""
    shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width)}
    norms = ["ln_f"] + [f"h.{i}.{norm}" for i in range(layers) for norm in ("ln_1", "ln_2")]
    for norm in norms:
        shapes[norm + ".weight"] = shapes[norm + ".bias"] = (width,)
    for i in range(layers):
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes[f"h.{i}.{name}.weight"] = (inputs, outputs)
            shapes[f"h.{i}.{name}.bias"] = (outputs,)
    return shapes


def merged(files):
    """The tensors of all files without the prefix of their names."""
    tensors = {}
    for path in files:
        for full, tensor in read(path).items():
            name = full.removeprefix("transformer.")
            if name in tensors:
                refuse(path, f"tensor '{name}': there are two of this name")
            tensors[name] = tensor
    return tensors


def converted(path, tensors):
    """The tensors of task/gpt, and a line on each change. path: for messages."""
    for name in ("wte.weight", "wpe.weight", "h.0.ln_1.weight"):
        if name not in tensors:
            refuse(path, f"has no tensor '{name}', so it does not have GPT-2's layout")
    for name in ("wte.weight", "wpe.weight"):
        if len(tensors[name][1]) != 2:
            refuse(path, f"tensor '{name}': is {list(tensors[name][1])}, not a table")
    masks = [
        name
        for name, (_, shape, _) in tensors.items()
        if name.endswith(".attn.masked_bias") or (name.endswith(".attn.bias") and len(shape) == 4)
    ]
    tensors = {name: tensor for name, tensor in tensors.items() if name not in masks}
    tokens, head = tensors["wte.weight"], tensors.pop("lm_head.weight", None)
    if head is not None and head != tokens:
        refuse(path, "tensor 'lm_head.weight': differs from 'wte.weight'; task/gpt has one tensor for both")

    layers = 0
    while f"h.{layers}.ln_1.weight" in tensors:
        layers += 1
    (vocabulary, width), context = tokens[1], tensors["wpe.weight"][1][0]
    # attn.c_proj is square, so this weight decides for all of them.
    is_linear = tensors.get("h.0.attn.c_attn.weight", (None, ()))[1] == (3 * width, width)
    turned = [name for name, (_, shape, _) in tensors.items() if is_linear and name[:2] == "h." and len(shape) == 2]
    tensors.update({name: transposed(tensors[name]) for name in turned})
    shapes = shapes_of(layers, width, vocabulary, context)
    for name in sorted(shapes.keys() | tensors.keys()):
        if name not in tensors:
            refuse(path, f"has no tensor '{name}'")
        if name not in shapes:
            refuse(path, f"tensor '{name}': is not one of GPT-2's")
        if tensors[name][1] != shapes[name]:
            refuse(path, f"tensor '{name}': is {list(tensors[name][1])}, and must be {list(shapes[name])}")
    lines = [f"GPT-2: {layers} layers, width {width}, context {context}, vocabulary {vocabulary}"]
    lines += [f"transposed {len(turned)} weights"] if turned else []
    lines += [f"left out {len(masks)} causal masks"] if masks else []
    lines += ["left out lm_head.weight, which equals wte.weight"] if head is not None else []
    return tensors, lines


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    *files, new = arguments
    if os.path.lexists(new):
        refuse(new, "exists already; name another file")
    tensors, lines = converted(files[0], merged(files))
    write(new, tensors)
    print(f"{new}: {len(tensors)} tensors", *lines, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
