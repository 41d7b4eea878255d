#!/usr/bin/env python3
"""Every configuration of configs/ with [run] engine = "compiled" beside the operators: processor time of one thread.

    python3 tests/benchmarks/engines.py [NAME]...

Prints a row for each: milliseconds a step by the operators, and the compiled engine's share of them, which may not be
above 1.00, up to --tolerance. Else it fails. The data are made by the scripts of examples/data.

A configuration whose log says that the operators compute is not timed, because both engines then do the same. Of the
others, a run of --seconds has read the data, compiled, compared and timed its programs, that of the last batch of an epoch
too. The time of such a run is subtracted from that of one of twice as many steps. The engines take turns in --rounds
rounds, and the least counts. So it can be measured on a machine with other work. Standard library only.
"""
import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORT = 50  # the least steps: a warm-up of 40 is the longest of configs/
LONG = 1000  # steps in which the smallest data have had six epochs

# The configurations, and what makes their data.
CONFIGURATIONS = {
    "mlp": None,
    "tabular": ["sh", "flats.sh", "data/flats.csv"],
    "sequence": ["python3", "waves.py", "data/waves.csv"],
    "images": ["python3", "shapes.py", "data/shapes"],
    "clips": ["python3", "clips.py", "data/clips"],
    "text": ["python3", "texts.py", "data/texts"],
    "byte_lm": None,
    "quickstart": None,
    "quickstart_small": None,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a configuration; none: all")
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--tolerance", type=float, default=0.02)
    given = parser.parse_args()
    unknown = set(given.names) - set(CONFIGURATIONS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(CONFIGURATIONS)}")
    return given


def make_data(command, folder):
    program, script, target = command
    (folder / target).parent.mkdir(exist_ok=True)
    script = str(ROOT / "examples/data" / script)
    if program == "sh":
        with open(folder / target, "w", encoding="utf-8") as file:
            subprocess.run([program, script], cwd=folder, stdout=file, check=True)
    else:
        subprocess.run([program, script, target], cwd=folder, stdout=subprocess.DEVNULL, check=True)


class Runs:
    def __init__(self, build, name, folder):
        self.start = [f"{build}/vernier", "train", str(ROOT / f"configs/{name}.toml")]
        self.folder, self.said = folder, ""

    def words(self, engine, steps):
        sets = [f"run.engine={engine}", f"run.steps={steps}", "run.epochs=0", "run.threads=1", "run.validate_every=0"]
        sets += ["checkpoint.use=none", f"run.output={self.folder}/{engine}-{steps}"]
        shutil.rmtree(f"{self.folder}/{engine}-{steps}", ignore_errors=True)
        return self.start + [word for one in sets for word in ("--set", one)]

    def why_not(self):
        """Returns what the log says if the operators compute in place of programs, else an empty text."""
        said = ""
        with subprocess.Popen(self.words("compiled", LONG), cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as run:
            for line in run.stdout:
                if "run: engine: " in line:
                    said = line.split("engine: ")[1].strip()
                    break
            run.terminate()
            run.stdout.read()
        return said if "operators compute" in said or "operators are used" in said else ""

    def seconds(self, engine, steps):
        """Returns the processor time of a run."""
        words = self.words(engine, steps)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} has failed:\n{done.stderr}")
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "run: engine: " in line]
        if engine == "compiled":
            self.said = lines[-1].split("engine: ")[1] if lines else ""
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def compare(self, rounds, seconds):
        probe = (self.seconds("operators", 2 * SHORT) - self.seconds("operators", SHORT)) / SHORT
        steps = max(SHORT, min(LONG, int(seconds / max(probe, 1e-5))))
        self.seconds("compiled", steps)  # fills the cache of programs
        least = {"operators": [1e9, 1e9], "compiled": [1e9, 1e9]}
        for _ in range(rounds):
            for engine, times in least.items():
                for i, count in enumerate((steps, 2 * steps)):
                    times[i] = min(times[i], self.seconds(engine, count))
        each = {engine: (long - short) / steps for engine, (short, long) in least.items()}
        return each["operators"], each["compiled"] / each["operators"]


def main():
    given = arguments()
    worst = 0
    print("| configuration | operators, ms a step | compiled | |\n| --- | --- | --- | --- |")
    for name in given.names or CONFIGURATIONS:
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path)
            for part in ("README.md", "docs", "framework", "sdk", "plugins", "tests"):
                os.symlink(ROOT / part, folder / part)
            if CONFIGURATIONS[name]:
                make_data(CONFIGURATIONS[name], folder)
            runs = Runs(given.build, name, folder)
            if why := runs.why_not():
                print(f"| {name} | | 1 | {why} |", flush=True)
                continue
            each, share = runs.compare(given.rounds, given.seconds)
        worst = max(worst, share)
        print(f"| {name} | {each * 1e3:.3g} | {share:.2f} | {runs.said} |", flush=True)
    if worst > 1 + given.tolerance:
        sys.exit(f"a configuration takes {worst:.2f} of the operators' time")


if __name__ == "__main__":
    main()
