"""Trains what `vernier new toml` writes for the tables that scikit-learn ships, against scikit-learn's MLP.

    python3 tests/plugins/task/sklearn_tables.py build/release/vernier

The files are read as they are shipped, the same rows are held out for both, and each model then predicts in an empty
folder. It exits with 77 and a reason where scikit-learn is not installed, and with 1 where Vernier is worse by more than
0.02 in accuracy or r2, over the mean of three splits.
"""
import csv
import gzip
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import sklearn
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SPLITS = 3
TOLERANCE = 0.02

# File, lines before the rows, separator, target, is it a classification.
TABLES = [
    ("iris.csv", 1, ",", "5", True),
    ("wine_data.csv", 1, ",", "14", True),
    ("breast_cancer.csv", 1, ",", "31", True),
    ("digits.csv.gz", 0, ",", "65", True),
    ("diabetes", 0, " ", "11", False),
    ("linnerud", 1, " ", "Weight", False),
]


def lines_of(folder, name):
    """The lines of a file as it is shipped. Two tables have their targets in a second file, which is put behind."""
    def read(file):
        data = (folder / file).read_bytes()
        return (gzip.decompress(data) if file.endswith(".gz") else data).decode().splitlines()

    if name == "diabetes":
        pairs = zip(read("diabetes_data_raw.csv.gz"), read("diabetes_target.csv.gz"))
    elif name == "linnerud":
        pairs = zip(read("linnerud_exercise.csv"), [line.split()[0] for line in read("linnerud_physiological.csv")])
    else:
        return read(name)
    return [f"{a} {b}" for a, b in pairs]


def numbers_of(lines, separator):
    return numpy.array([[float(field) for field in re.split(re.escape(separator) + "+", line)] for line in lines])


def peer(train, held_out, is_classification, seed):
    x, y = train[:, :-1], train[:, -1]
    if is_classification:
        model = make_pipeline(StandardScaler(), MLPClassifier((64, 64), max_iter=500, random_state=seed))
        return accuracy_score(held_out[:, -1], model.fit(x, y).predict(held_out[:, :-1]))
    inner = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(64, 64), max_iter=500, early_stopping=True, random_state=seed))
    model = TransformedTargetRegressor(inner, transformer=StandardScaler())
    return r2_score(held_out[:, -1], model.fit(x, y).predict(held_out[:, :-1]))


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def ours(vernier, work, table, parts, seed):
    _, _, _, target, is_classification = table
    for name, lines in parts.items():
        (work / f"{name}.csv").write_text("\n".join(lines) + "\n")
    run([vernier, "new", "toml", "train.csv", "--target", target, "--output", "run.toml"], work)
    run([vernier, "train", "run.toml", "--quiet", "--set", f"run.seed={seed}", "--set", "run.name=run"], work)
    empty = work / "elsewhere"
    empty.mkdir()
    (work / "runs").rename(empty / "runs")
    run([vernier, "predict", "runs/run", "--input", "../held_out.csv", "--output", "p.csv"], empty)
    with open(empty / "p.csv", encoding="utf-8") as file:
        return numpy.array([float(row[target]) for row in csv.DictReader(file)])


def main():
    vernier = str(pathlib.Path(sys.argv[1]).resolve())
    folder = pathlib.Path(sklearn.__file__).parent / "datasets" / "data"
    warnings.filterwarnings("ignore")
    worse = False
    for table in TABLES:
        name, before, separator, _, is_classification = table
        lines = lines_of(folder, name)
        head, rows = lines[:before], lines[before:]
        scores = []
        for seed in range(SPLITS):
            order = numpy.random.default_rng(seed).permutation(len(rows))
            held_out, train = order[: len(rows) // 4], order[len(rows) // 4 :]
            parts = {"train": head + [rows[i] for i in train], "held_out": head + [rows[i] for i in held_out]}
            numbers = numbers_of(rows, separator)
            with tempfile.TemporaryDirectory() as work:
                predicted = ours(vernier, pathlib.Path(work), table, parts, seed)
            score = accuracy_score if is_classification else r2_score
            scores.append((score(numbers[held_out, -1], predicted),
                           peer(numbers[train], numbers[held_out], is_classification, seed)))
        mine, theirs = numpy.mean(scores, axis=0)
        # Linnerud has 5 rows to hold out, which judge nothing: it must train and predict.
        is_worse = mine < theirs - TOLERANCE and name != "linnerud"
        worse = worse or is_worse
        print(f"{name:18} {'accuracy' if is_classification else 'r2':9} vernier {mine:.3f}  MLP {theirs:.3f}"
              f"{'  WORSE' if is_worse else ''}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
