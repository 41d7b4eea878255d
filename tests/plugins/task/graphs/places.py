"""Writes models with labels by pixel and by token, and their losses in PyTorch: pixels.pt2, tokens.pt2, mask.pt2 and
places.json. Needs torch 2.11 and scikit-learn 1.9, which gives the metrics.

    python3 tests/plugins/task/graphs/places.py

Each model trains 20 steps of plain gradient descent on two batches of 4 samples, in turn, and is then judged on 7
others by metrics over all of their labels. graph_places_test.cpp does the same by task/graph.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from sklearn import metrics
from torch import nn

folder = pathlib.Path(__file__).resolve().parent
sys.path.append(str(folder.parents[3] / "plugins/task/graph"))
import export  # noqa: E402

torch.set_num_threads(1)


def numbers(shape, salt):
    """Numbers from -1 to 1 that any language can repeat: exact in float32."""
    count = int(torch.tensor(shape).prod())
    values = [((i * 7919 + salt * 104729) % 2003 - 1001) / 1024 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def codes(shape, below, salt):
    count = int(torch.tensor(shape).prod())
    return torch.tensor([(i * i * 31 + salt * 17) % 1009 % below for i in range(count)]).reshape(shape)


class Pixels(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, outputs, 1)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


class Tokens(nn.Module):
    """Logits [samples, tokens, classes], as models of transformers have them."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        return self.head(torch.tanh(self.words(tokens)))


def with_left_out(labels, left_out):
    return labels.masked_fill(codes(labels.shape, 5, 9) == 0, left_out)


weights = torch.tensor([0.25, 1.0, 2.0])
cases = {
    "pixels": (
        lambda: Pixels(3),
        lambda n, s: numbers([n, 3, 6, 6], s),
        lambda n, s: with_left_out((numbers([n, 3, 6, 6], s)[:, :2] > 0).sum(1), 255),
        lambda y, t: F.cross_entropy(y, t, weight=weights, ignore_index=255),
    ),
    "tokens": (
        Tokens,
        lambda n, s: codes([n, 6], 11, s),
        lambda n, s: with_left_out(codes([n, 6], 11, s) % 4, -100),
        lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
    ),
    "mask": (
        lambda: Pixels(1),
        lambda n, s: numbers([n, 3, 6, 6], s),
        lambda n, s: (numbers([n, 3, 6, 6], s)[:, 0] > 0.2).float(),
        lambda y, t: F.binary_cross_entropy_with_logits(y[:, 0], t, pos_weight=torch.tensor([3.0])),
    ),
}


def scores(output, target):
    """Metrics over all labels that count."""
    is_mask = output.shape[1] == 1
    counted = (target >= 0) & (target < 255)
    said = (output[:, 0] > 0).long() if is_mask else output.argmax(1)
    both, average = (target[counted], said[counted]), "binary" if is_mask else "macro"
    return {
        "accuracy": metrics.accuracy_score(*both),
        "iou": metrics.jaccard_score(*both, average=average),
        "dice": metrics.f1_score(*both, average=average),
    }


def main():
    recorded = {}
    for name, (kind, inputs, labels, loss_of) in cases.items():
        torch.manual_seed(1)
        model = kind()
        export.write(model, [inputs(4, 1)], folder / f"{name}.pt2")
        model.train()
        losses = []
        for step in range(20):
            half = slice(4 * (step % 2), 4 * (step % 2) + 4)
            loss = loss_of(model(inputs(8, 1)[half]), labels(8, 1)[half])
            losses.append(loss.item())
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.5)
                    parameter.grad = None
        model.eval()
        with torch.no_grad():
            output, target = model(inputs(7, 2)), labels(7, 2)
            validation = loss_of(output, target).item()
            found = scores(output.transpose(1, 2) if name == "tokens" else output, target)
        recorded[name] = {"losses": losses, "validation_loss": validation, **found}
    (folder / "places.json").write_text(json.dumps(recorded, indent=1) + "\n")


main()
