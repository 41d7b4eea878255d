#!/usr/bin/env python3
"""The emulations of torchao and pychop on one thread, for tests/benchmarks/formats.cpp, which tells it what to do.

    python3 formats_rival.py FOLDER

Reads FOLDER/x.f32, 1024 rows of 1024 float32. Prints what is here, such as "torchao mxfp8", then "ready". Such a line
rounds all numbers to the format and back to float32; with "write" before it, it also writes them to
FOLDER/PACKAGE-FORMAT.f32; then "done".
"""
import pathlib
import sys

import torch

torch.set_num_threads(1)


def torchao_formats():
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    def mx(element):
        def rounded(x):
            scale, codes = to_mx(x, element, 32)
            return to_dtype(codes, scale, element, 32, torch.float32)

        return rounded

    def nvfp4(x):
        return NVFP4Tensor.to_nvfp4(x, per_tensor_scale=x.abs().max() / (448 * 6)).dequantize(torch.float32)

    return {"mxfp8": mx(torch.float8_e4m3fn), "mxfp4": mx(torch.float4_e2m1fn_x2), "nvfp4": nvfp4}


def pychop_formats():
    import pychop

    pychop.backend("torch")
    return {"e5m2": pychop.Chop(exp_bits=5, sig_bits=2, rmode=1)}


def main():
    folder = pathlib.Path(sys.argv[1])
    x = torch.frombuffer(bytearray((folder / "x.f32").read_bytes()), dtype=torch.float32).view(1024, 1024)
    rivals = {}
    for package, formats in {"torchao": torchao_formats, "pychop": pychop_formats}.items():
        try:
            rivals |= {f"{package} {name}": body for name, body in formats().items()}
        except ImportError:
            pass
    for name in rivals:
        print(name)
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip().removeprefix("write ")
        y = rivals[name](x)
        if line.startswith("write "):
            (folder / f"{name.replace(' ', '-')}.f32").write_bytes(y.contiguous().numpy().tobytes())
        print("done", flush=True)


main()
