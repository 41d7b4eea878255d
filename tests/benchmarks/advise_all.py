#!/usr/bin/env python3
"""How far the advice of `vernier advise` is from the best of all combinations of its options, trained one by one.

    ./vernier build
    python3 tests/benchmarks/advise_all.py configs/mlp.toml --batch 256 --set 'task.hidden=[256, 256]' \\
      --set run.threads=1
    python3 tests/benchmarks/advise_all.py configs/quickstart.toml --set run.threads=1 --seconds 120 --round 3

First `vernier advise` gives its advice, with --seconds for its measurements. Then every combination of the options that
it has measured is trained for --round seconds, in two rounds. One whose loss goes away from fp32's, by the rule of
docs/guides/advise.md, is left out. Those that are up to a fifth slower than the fastest are trained in --rounds more
rounds, in turn and in reversed order every second time, and with them the advice. The speed of a combination is the
highest of its rounds, that of a round the median of its steps. The last line compares the two; the exit code is 1 where the advice is
more than 5 % slower. Needs nothing but Python. Use a machine that does nothing else: the load is printed. Where that
cannot be, use one thread: several threads that wait for each other measure the other work.
"""
import argparse
import csv
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=int, default=60, help="for the advice")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round", type=int, default=2, help="seconds of a training")
    parser.add_argument("--program", default=str(ROOT / "build/release/vernier"))
    return parser.parse_args()


def advice_of(arguments, folder):
    command = [arguments.program, "advise", *arguments.files, "--json", "--quiet", f"--seconds={arguments.seconds}",
               f"--output={folder}/advice.toml", *(f"--set={each}" for each in arguments.set)]
    if arguments.batch:
        command.append(f"--batch={arguments.batch}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"advise_all.py: {' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def axis_of(settings):
    """The axis to which an option belongs, by its first key: precision and scaler are one."""
    key = sorted(settings)[0]
    table = key.split(".")[0]
    return {"precision": "precision", "scaler": "precision", "accumulation": "micro-batches"}.get(table, key)


def combinations(advice):
    """Each combination as {key: value}, with its name; the first is as written."""
    axes = {}
    for one in advice["measured"]:
        if one["settings"] and ", " not in one["name"]:
            axes.setdefault(axis_of(one["settings"]), [("", {})]).append((one["name"], one["settings"]))
    for chosen in itertools.product(*axes.values()):
        settings = {key: value for _, option in chosen for key, value in option.items()}
        yield ", ".join(name for name, _ in chosen if name) or "as written", settings


def train(arguments, settings, folder):
    """Returns (samples a second, losses) of one training, or a reason."""
    output = pathlib.Path(folder) / "run"
    sets = [*arguments.set, *(f"{key}={value}" for key, value in settings.items()), f'run.output="{output}"',
            "run.resume=never", f"run.time_limit={arguments.round}s", "checkpoint.use=none", "monitor=[]",
            "monitor.csv.every=1"]
    if arguments.batch:
        sets.append(f"task.batch_size={arguments.batch}")
    command = [arguments.program, "train", *arguments.files, "--quiet", *(f"--set={each}" for each in sets)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        with open(output / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
    finally:
        subprocess.run(["rm", "-rf", str(output)], check=True)
    speeds = [float(row["samples_per_second"]) for row in rows if row.get("samples_per_second")]
    losses = [float(row["loss"]) for row in rows if row.get("loss")]
    if len(speeds) < 2:
        return f"only {len(speeds)} steps in {arguments.round} seconds"
    return statistics.median(speeds[min(3, len(speeds) // 4):]), losses


def gap(losses, reference):
    common = min(len(losses), len(reference))
    if common < 4:
        return 0.0
    return statistics.fmean(losses[common // 2:common]) - statistics.fmean(reference[common // 2:common])


def main():
    arguments = read_arguments()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        advice = advice_of(arguments, folder)
        if advice["advice"] is None:
            sys.exit("advise_all.py: nothing is advised")
        everything = list(combinations(advice))
        advised = next(name for name, settings in everything if settings == advice["advice"]["settings"])
        print(f"{len(everything)} combinations, advice: {advised}; load {load:.1f} before, of {os.cpu_count()} cores",
              flush=True)
        speeds, losses, refused = {}, {}, {}
        for name, settings in everything + everything[::-1]:
            if name in refused:
                continue
            result = train(arguments, settings, folder)
            if isinstance(result, str):
                refused[name] = result
                continue
            speeds.setdefault(name, []).append(result[0])
            losses.setdefault(name, result[1])
        reference = losses.get("fp32", losses["as written"])
        for name in list(speeds):
            if not gap(losses[name], reference) <= 0.01 * abs(reference[0]):
                refused[name] = f"its loss is {gap(losses[name], reference):.3g} above fp32's"
            if name in refused:
                del speeds[name]
        for name, why in refused.items():
            print(f"  left out: {name}: {why}")
        best = max(max(speed) for speed in speeds.values())
        again = [name for name in speeds if max(speeds[name]) > 0.8 * best or name == advised]
        settings_of = dict(everything)
        print(f"{len(again)} of them are trained again", flush=True)
        for _ in range(arguments.rounds):
            again.reverse()
            for name in again:
                result = train(arguments, settings_of[name], folder)
                if not isinstance(result, str):
                    speeds[name].append(result[0])
    highest = sorted(((max(speed), name) for name, speed in speeds.items()), reverse=True)
    print(f"the fastest, load {os.getloadavg()[0]:.1f} after:")
    for speed, name in highest[:8]:
        print(f"  {speed:12.1f} samples/s  {name}{'   advised' if name == advised else ''}")
    if advised not in speeds:
        sys.exit(f"advise_all.py: the advice was left out: {refused[advised]}")
    behind = 1 - max(speeds[advised]) / highest[0][0]
    print(f"the advice is {100 * behind:.1f} % slower than the best of all: {highest[0][1]}")
    return 0 if behind <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
