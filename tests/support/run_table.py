"""Gives the columns of a CSV file to ONNX files of task/tabular, and compares the outputs with what LibTorch computed.

    python3 run_table.py FOLDER FILE.csv

Beside each <name>.onnx of the folder is <name>.safetensors with the "output" of all rows. A date is the days since 1970.
"""

import csv
import datetime
import json
import pathlib
import sys

import numpy
import onnxruntime
from run_onnx import read


def days(text):
    return (datetime.datetime.fromisoformat(text) - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1)


def column(kind, texts):
    if kind == "category":
        return numpy.array(texts, dtype=object)[:, None]
    value = days if kind == "date" else float
    return numpy.array([value(text) if text else numpy.nan for text in texts])[:, None]


def difference(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["description"])
    expected = read(path.with_suffix(".safetensors"))["output"]
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    for size in (1, 7, len(rows)):
        for first in range(0, len(rows), size):
            given = {
                one["name"]: column(one["type"], [row[one["name"]] for row in rows[first : first + size]])
                for one in facts["columns"]
            }
            outputs = dict(zip(names, session.run(None, given)))
            wanted = expected[first : first + size]
            output = outputs["output_"]  # the table has a column "output"
            assert output.shape == wanted.shape and output.dtype == wanted.dtype
            assert (numpy.isnan(output) == numpy.isnan(wanted)).all()
            distances = numpy.nan_to_num(abs(output - wanted) / numpy.maximum(1, abs(wanted)))
            worst = max(worst, float(distances.max()))
            if classes := facts.get("classes"):
                chances = numpy.exp(wanted) / numpy.exp(wanted).sum(1, keepdims=True)
                worst = max(worst, float(numpy.nan_to_num(abs(outputs["probabilities"] - chances)).max()))
                best = ["" if numpy.isnan(row).any() else classes[row.argmax()] for row in chances]
                assert list(outputs["class"]) == best
    return worst


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    with open(sys.argv[2], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    failed = not paths
    for path in paths:
        worst = difference(path, rows)
        failed |= not worst <= 1e-5
        print(f"{path.stem}: {worst:.1e}")
    sys.exit(failed)


main()
