"""A checkpoint as docs/reference/checkpoint-format.md specifies it, by Python's safetensors, json and xxhash.

    python3 tests/oracles/checkpoint.py             writes checkpoint/ again, and reads it
    python3 tests/oracles/checkpoint.py FOLDER      reads a checkpoint that Vernier wrote, every byte of it

Needs torch 2.11.0, safetensors and xxhash; the C++ tests need none of them, only the recorded folder.
"""

import json
import os
import struct
import sys

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL = len(',"checksum":"') + 32 + len('"}\n')
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
          torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def numbers(shape, dtype):
    """The i-th is (i * 5) % 11 - 5, without the - 5 in uint8; of bool whether that is not 0."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 5) % 11
    return (values != 0 if dtype == torch.bool else values if dtype == torch.uint8 else values - 5).to(dtype).view(shape)


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def checksum(data):
    return xxhash.xxh3_128_hexdigest(data)


def head_of(path):
    with open(path, "rb") as file:
        length = file.read(8)
        return length + file.read(struct.unpack("<Q", length)[0])


def describe(path):
    """What the manifest says of a file."""
    tensors = {name: {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "checksum": checksum(raw(tensor))}
               for name, tensor in load_file(path).items()}
    return {"bytes": os.path.getsize(path), "header_checksum": checksum(head_of(path)), "tensors": tensors}


def write(folder, model, state, step):
    os.makedirs(folder, exist_ok=True)
    save_file(model, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    save_file(state, os.path.join(folder, "state.safetensors"), {"format": "vernier.checkpoint 2"})
    manifest = {"format": "vernier.checkpoint", "version": 2, "step": step, "run": "python", "versions": {"torch": "2.11.0"},
                "plugins": [{"id": "task/none", "version": "1"}], "configuration": {"run": {"steps": step}},
                "of_no_meaning": None,
                "files": {name: describe(os.path.join(folder, name)) for name in ("model.safetensors", "state.safetensors")}}
    text = json.dumps(manifest)[:-1].encode()
    with open(os.path.join(folder, "manifest.json"), "wb") as file:
        file.write(text + b',"checksum":"' + checksum(text).encode() + b'"}\n')


def must(holds, what):
    if not holds:
        raise SystemExit(what)


def read(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        text = file.read()
    must(text[-TAIL:] == b',"checksum":"' + checksum(text[:-TAIL]).encode() + b'"}\n', "manifest.json: its checksum")
    manifest = json.loads(text)
    must(manifest["format"] == "vernier.checkpoint" and manifest["version"] == 2, "manifest.json: format and version")
    print(f"step {manifest['step']} of run {manifest['run']}, written by {manifest['versions']}")
    for name, said in manifest["files"].items():
        path = os.path.join(folder, name)
        found = describe(path)
        for key in ("bytes", "header_checksum", "tensors"):
            must(found[key] == said[key], f"{name}: {key} are not those of the manifest")
        with safe_open(path, "pt") as file:
            print(f"{name}: {len(said['tensors'])} tensors, {said['bytes']} bytes, each as the manifest says; "
                  f"metadata {file.metadata()}")


def main():
    if len(sys.argv) > 1:
        read(sys.argv[1])
        return
    model = {"h.10.weight": numbers((3, 4), torch.float32), "h.2.weight": numbers((5,), torch.bfloat16),
             "half": numbers((2, 2, 2), torch.float16), "ready": numbers((3,), torch.bool), "größe": numbers((), torch.float64)}
    state = {"run/step": torch.tensor(7), "plugin/optimizer/adamw/0/mean": numbers((3, 4), torch.float32),
             "random/cpu": numbers((17,), torch.uint8), "nothing": numbers((0, 3), torch.float32),
             "few": numbers((2,), torch.int32)}
    folder = os.path.join(HERE, "checkpoint")
    write(folder, model, state, 7)
    read(folder)


if __name__ == "__main__":
    main()
