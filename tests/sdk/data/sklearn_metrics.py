"""Prints the table of evaluation_test.cpp: metrics of scikit-learn 1.9 of outputs and targets that a formula gives.

    python3 tests/sdk/data/sklearn_metrics.py

The formula is numbers() of the test. One label is binary, as scikit-learn takes a single column.
"""
import itertools
import warnings

import numpy as np
from sklearn import metrics

warnings.filterwarnings("ignore")


def numbers(rows, columns, seed, levels):
    """Numbers from -1 to 1, of so many different ones."""
    i, k = np.arange(rows)[:, None], np.arange(columns)[None, :]
    mixed = (i * 7919 + k * 104729 + seed * 1299709) % 100003
    return ((mixed * mixed) % 100003 % levels) / ((levels - 1) / 2) - 1


def labels_of(rows, labels, seed, missing):
    rare = np.linspace(0.8, -0.7, labels)[None, :]  # from a frequent label to a rare one
    target = (numbers(rows, labels, seed, 997) < rare).astype(float)
    logits = numbers(rows, labels, seed + 1, 31) + 0.6 * (2 * target - 1)  # many equal ones
    if missing:
        target[numbers(rows, labels, seed + 2, 997) > 0.6] = np.nan
    return logits, target


def of_labels(logits, target):
    known, said = ~np.isnan(target), logits > 0
    rows = known.any(1)
    right = (said == target) | ~known
    columns = [(target[known[:, k], k], said[known[:, k], k], logits[known[:, k], k]) for k in range(target.shape[1])]
    areas = [metrics.roc_auc_score(t, s) for t, _, s in columns]
    if known.all() and target.shape[1] > 1:  # scikit-learn has no missing labels, so those are computed one by one
        assert np.isclose(metrics.roc_auc_score(target, logits, average="macro"), np.mean(areas), equal_nan=True)
        assert np.isclose(metrics.accuracy_score(target, said), right[rows].all(1).mean())
        f1 = metrics.f1_score(target, said, average="macro")
    elif target.shape[1] == 1:
        f1 = metrics.f1_score(columns[0][0], columns[0][1], average="macro")
    else:
        f1 = np.mean([metrics.f1_score(t, s) for t, s, _ in columns])
    return {"accuracy": (said == target)[known].mean(), "subset_accuracy": right[rows].all(1).mean(), "f1": f1,
            "dice": np.mean([metrics.f1_score(t, s) for t, s, _ in columns]),
            "iou": np.mean([metrics.jaccard_score(t, s) for t, s, _ in columns]), "auc": np.mean(areas)}


def main():
    number = itertools.count(1)
    for rows, labels, missing in [(40, 1, False), (40, 2, False), (33, 3, False), (64, 4, False), (25, 7, False),
                                  (90, 12, False), (50, 1, True), (50, 2, True), (80, 5, True), (6, 4, False)]:
        seed = next(number)
        for name, value in of_labels(*labels_of(rows, labels, seed, missing)).items():
            print(f'{{Kind::labels, {rows}, {labels}, {seed}, {str(missing).lower()}, "{name}", {text(value)}}},')
    for rows, columns in [(40, 1), (33, 2), (50, 3), (21, 6)]:
        seed = next(number)
        target = 3 * numbers(rows, columns, seed, 997) + np.arange(columns)
        output = target + numbers(rows, columns, seed + 1, 997)
        for name, of in {"mae": metrics.mean_absolute_error, "r2": metrics.r2_score,
                         "rmse": metrics.root_mean_squared_error}.items():
            print(f'{{Kind::numbers, {rows}, {columns}, {seed}, false, "{name}", {text(of(target, output))}}},')
    for rows, classes in [(40, 2), (60, 3), (50, 6)]:
        seed = next(number)
        target = (np.abs(numbers(rows, 1, seed, 997))[:, 0] * 0.999 * classes).astype(int)
        logits = numbers(rows, classes, seed + 1, 31) + 0.8 * np.eye(classes)[target]
        said = logits.argmax(1)
        found = {"accuracy": metrics.accuracy_score(target, said), "f1": metrics.f1_score(target, said, average="macro"),
                 "dice": metrics.f1_score(target, said, average="macro"),
                 "iou": metrics.jaccard_score(target, said, average="macro")}
        if classes == 2:
            found["auc"] = metrics.roc_auc_score(target, logits[:, 1] - logits[:, 0])
        for name, value in found.items():
            print(f'{{Kind::classes, {rows}, {classes}, {seed}, false, "{name}", {text(value)}}},')


def text(value):
    return "NAN" if np.isnan(value) else repr(float(value))


if __name__ == "__main__":
    main()
