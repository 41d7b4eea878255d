"""Records safetensors_layout/*.safetensors: files as safetensors.torch.save_file (0.8.0) of Python writes them.

    python3 tests/oracles/safetensors_layout.py [--compare]

The C++ writer, given a file's tensors and metadata in any order, shall write the same bytes. `layout` below is the
whole rule in Python, and is checked against the library for each file. torch 2.11.0.
"""

import argparse
import json
import os
import struct
import tempfile

import safetensors
import torch
from oracle import HERE, TORCH
from safetensors.torch import save_file

VERSION = "0.8.0"

# The library's order of data: from the first to the last of these, and by name where the type is the same.
RANK = (
    "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 BOOL"
).split()
DTYPES = dict(
    zip(
        RANK,
        (
            torch.uint64, torch.int64, torch.float64, torch.complex64, torch.float32, torch.uint32, torch.int32,
            torch.bfloat16, torch.float16, torch.uint16, torch.int16, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
            torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.bool,
        ),
    )
)  # fmt: skip
COMMON = "F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E4M3 F8_E5M2".split()


def values(dtype, shape):
    """Element i in row-major order is (i * 5) % 11, and less 5 in types with a sign; bool is that, not 0."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 5) % 11
    if dtype[0] not in "U" and dtype not in ("BOOL", "F8_E8M0"):
        numbers = numbers - 5
    return numbers.reshape(shape).double().to(DTYPES[dtype])


def files():
    """{file: (tensors, metadata)}. At most one metadata entry: the library writes several in random order."""
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 3.4028235e38]
    shapes = {
        "scalar": values("F32", ()),
        "empty": values("F32", (0,)),
        "hollow": values("I64", (2, 0, 3)),
        "one": values("U8", (1,)),
        "odd": values("U8", (3, 1, 5)),
        "h.2.weight": values("BF16", (3, 5)),
        "h.10.weight": values("BF16", (5, 3)),  # before h.2.weight: the order of bytes
        "h.1.bias": values("F64", (7,)),
        "flag": values("BOOL", ()),
        "Upper": values("I16", (2, 3, 4)),
        "_under": values("I16", (1, 1, 1, 1, 1)),
    }
    names = ['quote"', "back\\slash", "slash/", "line\n", "tab\t", "bell\x07", "unit\x1f", "delete\x7f"]
    names += ["café", "目盛", "😀", " space ", "", "\b\f\r"]
    return {
        "dtypes": ({f"{chr(97 + i)}_{d}": values(d, (2, 3)) for i, d in enumerate(COMMON)}, None),
        "more_dtypes": ({d: values(d, (3,)) for d in RANK if d not in COMMON}, None),
        "shapes": (shapes, None),
        "metadata": ({"weight": values("F32", (3,)), "bias": values("F16", (3,))}, {"format": "pt"}),
        "names": ({n: values("F32", (1,)) for n in names}, {'key "é"': 'line\none\\two\t{"json": [1]}'}),
        "special": ({"f32": torch.tensor(special), "f64": torch.tensor(special, dtype=torch.float64)}, None),
        "no_padding": ({"w_4567890123": values("U8", (5,))}, None),
        "no_tensors": ({}, None),
        "no_tensors_metadata": ({}, {"step": "12"}),
        "empty_metadata": ({"weight": values("F32", (1,))}, {}),
    }


def layout(tensors, metadata):
    """The bytes by our own description of the format."""
    name_of = {dtype: name for name, dtype in DTYPES.items()}
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name in sorted(tensors, key=lambda n: (RANK.index(name_of[tensors[n].dtype]), n.encode("utf-8"))):
        tensor = tensors[name]
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        header[name] = {
            "dtype": name_of[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def main():
    parser = argparse.ArgumentParser(prog="safetensors_layout.py")
    parser.add_argument("--compare", action="store_true", help="compare with the recorded files, write nothing")
    arguments = parser.parse_args()
    if not torch.__version__.startswith(TORCH) or safetensors.__version__ != VERSION:
        parser.error(f"needs torch {TORCH} and safetensors {VERSION}")
    folder = os.path.join(HERE, "safetensors_layout")
    os.makedirs(folder, exist_ok=True)
    for name, (tensors, metadata) in files().items():
        path = os.path.join(folder, name + ".safetensors")
        with tempfile.TemporaryDirectory() as temporary:
            save_file(tensors, os.path.join(temporary, "file"), metadata)
            with open(os.path.join(temporary, "file"), "rb") as file:
                content = file.read()
        if content != layout(tensors, metadata):
            raise SystemExit(f"{name}: the library writes other bytes than layout() says")
        if not arguments.compare:
            with open(path, "wb") as file:
                file.write(content)
        with open(path, "rb") as file:
            if content != file.read():
                raise SystemExit(f"{name}: other bytes than recorded")
        header = content[8 : 8 + struct.unpack("<Q", content[:8])[0]]
        spaces = len(header) - len(header.rstrip(b" "))
        print(f"{name}: {len(tensors)} tensors, {len(content)} bytes, header padded by {spaces}")


if __name__ == "__main__":
    main()
