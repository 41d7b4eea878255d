"""Runs the ONNX files of a folder by onnxruntime, and compares their outputs with what LibTorch computed.

    python3 run_onnx.py FOLDER

Beside each <name>.onnx is <name>.safetensors: for each number of samples n the inputs "<input>/<n>" and "output/<n>".
"""

import json
import pathlib
import sys

import numpy
import onnxruntime

dtypes = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1", "BOOL": "?"}


def read(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {
        name: numpy.frombuffer(body[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


def difference(path):
    """The largest difference, in units of the largest output or 1."""
    numpy.seterr(invalid="ignore")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    numbers = read(path.with_suffix(".safetensors"))
    worst = 0.0
    for name, expected in numbers.items():
        if not name.startswith("output/"):
            continue
        samples = name.removeprefix("output/")
        given = {one.name: numbers[f"{one.name}/{samples}"] for one in session.get_inputs()}
        (output,) = session.run(["output"], given)
        assert (output.shape, output.dtype) == (expected.shape, expected.dtype), f"{output.shape}, not {expected.shape}"
        is_same = (output == expected) | ((output != output) & (expected != expected))
        if expected.dtype.kind != "f":
            worst = max(worst, float(not is_same.all()))
            continue
        apart = numpy.where(is_same, 0, abs(output - expected)).max()
        largest = abs(expected[numpy.isfinite(expected)]).max(initial=1.0)
        worst = float(numpy.maximum(worst, apart / largest))  # it keeps NaN, which max() loses
    return worst


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    failed = not paths
    for path in paths:
        try:
            worst = difference(path)
        except Exception as error:
            worst = float("nan")
            print(error)
        failed |= not worst <= 1e-5
        print(f"{path.stem}: {worst:.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
