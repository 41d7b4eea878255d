"""Vernier, a training framework for LibTorch: where it is installed, and runs that its program trains.

    import vernier
    trained = vernier.train("run.toml", optimizer={"learning_rate": 0.01})
    trained.metrics["loss"]                      # an array, NaN at steps without the metric
    vernier.run("runs/mine").summary["steps"]    # a run that is there
"""
import array
import importlib.metadata
import importlib.util
import json
import math
import os
import signal
import subprocess
import tempfile
from pathlib import Path

__all__ = ["Run", "TrainingError", "cmake_dir", "libtorch_dir", "prefix", "program", "run", "train"]
try:
    __version__ = importlib.metadata.version("vernier")
except importlib.metadata.PackageNotFoundError:  # an unpacked wheel
    __version__ = "unknown"


def prefix():
    """Returns the folder with bin, lib, include and share."""
    return Path(__file__).resolve().parent


def program():
    """Returns the path of the program."""
    return prefix() / "bin" / "vernier"


def cmake_dir():
    """Returns the folder of VernierConfig.cmake, for -DVernier_DIR=."""
    return prefix() / "lib" / "cmake" / "Vernier"


def libtorch_dir():
    """Returns the folder of the package torch, which is LibTorch, without importing it. Raises ImportError."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise ImportError("the package torch is not installed, which has LibTorch: " + _install_torch())
    return Path(found.submodule_search_locations[0])


def _install_torch():
    needs = [need for need in importlib.metadata.requires("vernier") or () if need.startswith("torch")]
    return f"pip install '{needs[0]}'" if needs else "pip install torch"


def environment(called_as="vernier"):
    """Returns the environment of the program: LibTorch is found where Python finds torch."""
    settings = dict(os.environ, VERNIER_CALLED_AS=called_as)
    torch = libtorch_dir()
    if torch.resolve().parent != prefix().parent:  # else the program finds it by itself
        before = settings.get("LD_LIBRARY_PATH")
        settings["LD_LIBRARY_PATH"] = f"{torch / 'lib'}{':' + before if before else ''}"
    return settings


class TrainingError(RuntimeError):
    """A training that did not end well. status: the exit status of the program."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


class Run:
    """What a run has written into its folder. It is read anew each time, so that a run may be watched."""

    def __init__(self, folder):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such run")

    @property
    def summary(self):
        """Returns summary.json, which the program writes at the end."""
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))

    @property
    def metrics(self):
        """Returns an array for "step" and for each metric of losses.jsonl, one value a step: NaN where there is none.

        The arrays are NumPy's, or those of the standard library where NumPy is not installed.
        """
        rows = {}
        for line in (self.folder / "losses.jsonl").read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # half a line, of a run that was killed
                continue
            rows.setdefault(row["step"], {}).update(
                (name, float(value)) for name, value in row.items()
                if isinstance(value, (int, float)) or value in ("inf", "-inf", "nan"))
        names = dict.fromkeys(["step", *(name for row in rows.values() for name in row)])
        columns = {name: array.array("d", (row.get(name, math.nan) for row in rows.values())) for name in names}
        try:
            import numpy
        except ImportError:
            return columns
        return {name: numpy.asarray(column) for name, column in columns.items()}

    def __repr__(self):
        return f"vernier.run({str(self.folder)!r})"


def run(folder):
    """Returns a run that is there."""
    return Run(folder)


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value, ensure_ascii=False)


def _settings(table, before=""):
    """Gives KEY=VALUE for each value of nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{before}{key}.")
        else:
            yield f"{before}{key}={_toml(value)}"


def train(configuration, **sets):
    """Trains, prints what the program prints, and returns the run.

    configuration: a TOML file, or its content as a dict. sets: values on top of it, by tables:
    optimizer={"learning_rate": 0.01}, or **{"optimizer.learning_rate": 0.01}. Raises TrainingError with the program's
    last line. After an interruption the run has a checkpoint, and KeyboardInterrupt is raised.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if isinstance(configuration, dict):
            file = Path(scratch) / "run.toml"
            lines = [f"{json.dumps(str(key))} = {_toml(value)}\n" for key, value in configuration.items()]
            file.write_text("".join(lines), encoding="utf-8")
            configuration = file
        configuration = Path(configuration)
        command = [program(), "train", configuration]
        for setting in _settings(sets):
            command += ["--set", setting]
        folder = Path(scratch) / "folder"
        _follow(command, folder, has_hints=configuration.parent != Path(scratch))
        return Run(folder.read_text(encoding="utf-8"))


def _follow(command, folder, has_hints):
    """Runs the program, which writes into the file `folder` where its run is."""
    # In a session of its own, so that an interruption reaches it once, from here; a notebook sends it to Python alone.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
                          errors="replace", env=dict(environment(), VERNIER_FOLDER_FILE=str(folder)),
                          start_new_session=True) as process:
        last, interruption, is_shown = "", None, True
        while True:
            try:
                line = process.stdout.readline()
                if not line:
                    break
                if line == "try next:\n" and not has_hints:  # commands with a file that will be gone
                    is_shown = False
                if is_shown:
                    print(line, end="", flush=True)
                last = line.strip() or last
            except KeyboardInterrupt as caught:
                interruption = caught
                process.send_signal(signal.SIGINT)
    if interruption:
        raise interruption
    if process.returncode != 0:
        raise TrainingError(last, process.returncode)
