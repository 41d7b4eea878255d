#!/usr/bin/env python3
"""Runs what the first documents ask for and looks for what must come out, as seeds.tsv says it for each demand.

    tests/docs/seeds.py VERNIER ROOT [PLACE...]

VERNIER is the program in a build folder, ROOT the source tree. With places, such as 000:68, only their rows are tried.
The head of seeds.tsv describes its columns. A run is made once, in an empty folder, however many rows look at it.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROWS = 149
REASONS = {
    "gpu": "no machine of the tests has a GPU",
    "several gpus": "no machine of the tests has two GPUs",
    "speed": "a test asserts no timing; a benchmark measured it",
    "cloud": "the tests have no account at a cloud",
    "edge": "no machine of the tests has an ARM processor",
    "design": "it is not done, and the page says why",
}
# refused FILE COMMAND...: the command must end with status 2, which is that of a refusal, and says why in FILE.
PRELUDE = """refused() {
  said=$1; shift; status=0
  "$@" >"$said" 2>&1 || status=$?
  [ "$status" -eq 2 ] || { echo "status $status instead of 2: $*"; cat "$said"; exit 1; }
}
. "$1"
"""


class Wrong(Exception):
    """What is said of a row that does not hold."""


def short(text):
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:300] + "…"


def fits(text, wanted):
    """Whether a text has what is wanted, in which "..." is any text of one line."""
    return re.search(r"[^\n]*".join(re.escape(part) for part in wanted.split("...")), text) is not None


def is_value(value, wanted):
    """Whether a value of a JSON file is what is wanted: "number", "boolean", "> 0", JSON, or a text with "..."."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted == "number":
        return is_number
    if wanted == "boolean":
        return isinstance(value, bool)
    if compared := re.fullmatch(r"(<|<=|>|>=|not) (-?[0-9.e+-]+)", wanted):
        sign, bound = compared[1], float(compared[2])
        same = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__", "not": "__ne__"}
        return is_number and getattr(float(value), same[sign])(bound)
    try:
        if json.loads(wanted) == value:
            return True
    except json.JSONDecodeError:
        pass
    text = value if isinstance(value, str) else json.dumps(value)
    return fits(text, wanted) if "..." in wanted else text == wanted


class Seeds:
    """The runs of the table, and what they left."""

    def __init__(self, vernier, root, work):
        self.root, self.work, self.here = root, work, root / "tests/docs/seeds"
        build = vernier.resolve().parent
        self.environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}", VERNIER_SOURCE=str(root),
                                VERNIER_BUILD=str(build), SEEDS=str(self.here), OMP_WAIT_POLICY="passive")
        self.environment.pop("VERNIER_PLUGIN_PATH", None)
        listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, check=True)
        self.tests = {test["name"] for test in json.loads(listed.stdout)["tests"]}
        self.printed, self.failed = {}, {}

    def script(self, run):
        for suffix in (".sh", ".py"):
            if (self.here / (run + suffix)).exists():
                return self.here / (run + suffix)
        return None

    def called(self, run):
        """A run as a message names it."""
        script = self.script(run)
        return str(script.relative_to(self.root)) if script else run

    def make(self, run):
        """Makes a run: a script of seeds/, or a command line."""
        folder = self.folder(run)
        folder.mkdir()
        if script := self.script(run):
            words = ["sh", "-euc", PRELUDE, "sh", str(script)] if script.suffix == ".sh" else ["python3", str(script)]
        else:
            for file in self.here.glob("*.toml"):
                (folder / file.name).symlink_to(file)
            words = shlex.split(run.removeprefix("refused "))
        done = subprocess.run(words, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.printed[run] = done.stdout
        if done.returncode != (2 if run.startswith("refused ") else 0):
            self.failed[run] = f"it ended with {done.returncode}: {short(self.last_words(folder, done.stdout))}"

    @staticmethod
    def last_words(folder, printed):
        """What the last command of a failed run said; a script's commands say it in files."""
        files = sorted(folder.glob("*.txt"), key=lambda file: file.stat().st_mtime)
        return printed[-300:] or (files[-1].read_text(errors="replace")[-300:] if files else "")

    def folder(self, run):
        return self.work / re.sub(r"[^A-Za-z0-9]+", "-", run)[:120]

    def look(self, run, where, wanted):
        """Raises Wrong unless what the run left is what is wanted."""
        kind, _, rest = run.partition(" ")
        if kind == "elsewhere":
            if rest not in REASONS:
                raise Wrong(f"`{rest}` is not a reason; there are {', '.join(REASONS)}")
            return self.look_at_page(where, wanted)
        if kind == "page":
            return self.look_at_page(rest, wanted)
        if kind == "test":
            return self.look_at_test(rest, where, wanted)
        file, _, key = where.partition(" ")
        if file == "-":
            text = self.printed[run]
        elif not (self.folder(run) / file).exists():
            raise Wrong(f"it left no {file}")
        else:
            text = (self.folder(run) / file).read_text(encoding="utf-8", errors="replace")
        if not key:
            if not fits(text, wanted):
                raise Wrong(f"{'the output' if file == '-' else file} lacks `{wanted}`: {short(text)}")
            return None
        value = json.loads(text)
        for part in key.split("/"):
            try:
                value = value[int(part)] if isinstance(value, list) else value[part]
            except (KeyError, IndexError, TypeError, ValueError):
                raise Wrong(f"{file} has no {key}, which must be `{wanted}`: {short(text)}") from None
        if not is_value(value, wanted):
            raise Wrong(f"{key} of {file} must be `{wanted}`, and is {json.dumps(value)}")
        return None

    def look_at_page(self, place, wanted):
        path, _, anchor = place.partition("#")
        if not (self.root / path).is_file():
            raise Wrong(f"there is no page {path}")
        text = (self.root / path).read_text(encoding="utf-8")
        if anchor:  # up to the next heading of the same depth or above
            depth, part = 0, []
            for line in text.splitlines():
                if heading := re.fullmatch(r"(#+) (.*)", line):
                    if depth and len(heading[1]) <= depth:
                        break
                    if re.sub(r"[^a-z0-9_-]", "", heading[2].lower().replace(" ", "-")) == anchor:
                        depth = len(heading[1])
                if depth:
                    part.append(line)
            if not part:
                raise Wrong(f"{path} has no heading #{anchor}")
            text = "\n".join(part)
        if not fits(" ".join(text.split()), wanted):
            raise Wrong(f"{place} lacks `{wanted}`")

    def look_at_test(self, name, file, wanted):
        if name not in self.tests:
            raise Wrong("ctest has no test of this name")
        if not (self.root / file).is_file():
            raise Wrong(f"there is no file {file}")
        text = (self.root / file).read_text(encoding="utf-8")
        folder, _, rest = name.partition(": ")
        is_its_file = file == f"tests/{folder}/{rest}_test.cpp" or rest in text or not file.endswith("_test.cpp")
        if not is_its_file:
            raise Wrong(f"{file} is not the source of this test")
        if not fits(" ".join(text.split()), wanted):
            raise Wrong(f"{file} lacks `{wanted}`")


def table(path, places):
    """Returns the rows as lists of (place, demand, run, where, wanted): a line that begins with a tab goes on a row."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 5 or not all(columns[2:]):
            sys.exit(f"{path}:{number}: {len(columns)} columns instead of 5, or an empty one: {line}")
        if columns[0]:
            rows.append([])
            head = columns[:2]
        rows[-1].append((*head, *columns[2:]))
    if len(rows) != ROWS:
        sys.exit(f"{path}: {len(rows)} rows instead of {ROWS}")
    return [row for row in rows if not places or row[0][0] in places]


def main():
    vernier, root, places = Path(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:]
    rows = table(root / "tests/docs/seeds.tsv", places)
    lines = [line for row in rows for line in row]
    with tempfile.TemporaryDirectory() as work:
        seeds = Seeds(vernier, root, Path(work))
        runs = list(dict.fromkeys(run for _, _, run, _, _ in lines if seeds.script(run) or "vernier " in run))
        # The longest first: those are scripts.
        runs.sort(key=lambda run: seeds.script(run) is None)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(seeds.make, runs))
        wrong = []
        for place, demand, run, where, wanted in lines:
            try:
                if run.split()[0] not in ("elsewhere", "page", "test") and run not in seeds.printed:
                    raise Wrong("there is no such script in tests/docs/seeds")
                seeds.look(run, where, wanted)
            except Wrong as error:
                wrong.append(f"{place} {demand}: {seeds.called(run)}: {error}")
        wrong += [f"{seeds.called(run)}: {why}" for run, why in seeds.failed.items()]
        if not places:
            unused = {file for file in seeds.here.iterdir() if seeds.script(file.stem) == file}
            unused -= {seeds.script(run) for run in runs}
            wrong += [f"{file.relative_to(root)} is in no row" for file in sorted(unused)]
    wrong = list(dict.fromkeys(wrong))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    for reason, why in REASONS.items():
        count = len({line[0] for line in lines if line[2] == f"elsewhere {reason}"})
        if count > 0:
            print(f"{count} rows are not run, or not all of it, because {why}")
    print(f"{len(rows)} rows, {len(lines)} lines, {len(runs)} runs, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
