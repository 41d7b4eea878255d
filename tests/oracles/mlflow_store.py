"""Checks with MLflow itself what monitor/mlflow writes, or writes the tables that it begins with.

    python3 tests/oracles/mlflow_store.py BUILD_FOLDER    # trains and resumes, and reads the store with MLflow
    python3 tests/oracles/mlflow_store.py --schema        # prints the SQL in plugins/monitor/mlflow/schema.inc

Needs MLflow, which CI has not: it is run by hand, last with MLflow 3.17. Older ones from 2.3 on migrate the store too.
"""

import pathlib
import re
import subprocess
import sqlite3
import sys
import tempfile

REVISION = "97727af70f4d"  # of MLflow 2.0
RUN = """
[run]
steps = {}
output = "run"
[task]
use = "mlp"
[optimizer]
use = "adamw"
learning_rate = 0.01
[checkpoint]
use = "rolling"
every = 5
[[monitor]]
use = "mlflow"
experiment = "sizes"
"""


def schema():
    import sqlalchemy
    from alembic import command
    from mlflow.store.db import utils

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/mlflow.db"
        engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        utils.InitialBase.metadata.create_all(engine)
        config = utils._get_alembic_config(f"sqlite:///{path}")
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, REVISION)
        rows = sqlite3.connect(path).execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    text = "".join(f"{row[0]};\n" for row in rows)
    for pattern, put in ((r"[ \t]*\n\t", "\n  "), (r" *\n *\)", ")"), (r", *\n", ",\n")):
        text = re.sub(pattern, put, text)
    print(text + f"INSERT INTO alembic_version VALUES('{REVISION}');")


def check(build):
    import mlflow
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def train(steps, *words):
            (folder / "run.toml").write_text(RUN.format(steps))
            command = [build / "vernier", "train", "run.toml", *words]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        train(10)
        uri = f"sqlite:///{folder}/run/mlflow.db"
        mlflow.set_tracking_uri(uri)  # migrates the store
        client = MlflowClient(uri)
        found = mlflow.search_runs(experiment_names=["sizes"])
        assert len(found) == 1 and found["status"][0] == "FINISHED", found
        assert found["params.optimizer.learning_rate"][0] == "0.01", found
        run = found["run_id"][0]
        assert [each.step for each in client.get_metric_history(run, "loss")] == list(range(1, 11))
        assert client.get_run(run).info.artifact_uri.endswith(f"/mlartifacts/1/{run}/artifacts")
        client.log_text(run, "a note", "note.txt")
        client.update_run(run, name="my best")
        began = client.get_run(run).info.start_time
        train(15, "--resume")
        after = client.get_run(run)
        assert (after.info.run_name, after.info.start_time) == ("my best", began), after.info
        assert [each.step for each in client.get_metric_history(run, "loss")] == list(range(1, 16))
        assert after.data.metrics["loss"] == client.get_metric_history(run, "loss")[-1].value
        client.delete_run(run)
        assert "mlflow runs restore" in train(20, "--resume")
        assert client.get_run(run).info.lifecycle_stage == "deleted"
        with mlflow.start_run():  # MLflow goes on in the store as in its own
            mlflow.log_metric("own", 1.0)
        print(f"MLflow {mlflow.__version__} reads and migrates the store, and keeps what is its own")


schema() if sys.argv[1:] == ["--schema"] else check(pathlib.Path(sys.argv[1]).resolve())
