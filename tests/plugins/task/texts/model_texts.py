"""Calls the model.py of an exported task/text on the texts of a file, and compares with columns.safetensors.

    model_texts.py FILE
"""

import csv
import json
import sys

import torch
from safetensors.torch import load_file

sys.path.insert(0, ".")
from model import load_model  # noqa: E402  written by the test


def texts_of(path):
    if path.endswith(".csv"):
        with open(path, encoding="utf-8", newline="") as file:
            return [row["text"] for row in csv.DictReader(file)]
    with open(path, encoding="utf-8") as file:
        return ["{query}\n{title}".format(**json.loads(line)) for line in file]


expected = load_file("columns.safetensors")["first"]
found = load_model()(texts_of(sys.argv[1])[: len(expected)])
if isinstance(found[0], str):
    found = [["fine", "misleading"].index(word) for word in found]
torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-4, atol=1e-3)
