#!/usr/bin/env python3
"""Compares memory and time of two ranks under distributed/ddp, zero1 and zero3: a GPT with AdamW in float32, with one
thread a rank.

    ./vernier build && python3 tests/benchmarks/shards.py [--layers 12] [--width 768] [--context 128] [--batch 4]
        [--steps 6] [--set KEY=VALUE] [--resume] [--program build/release/vernier]

Prints the peak of a rank's resident memory and the median time of a step, with the ratios to ddp. The first step is
left out of the times. With --resume each run is also saved and resumed, and the peak of a rank that resumes is printed.
By default the model has 12 layers of 768: 85 million parameters. The program ends with an error
if the weights differ from those of ddp. Use a machine that does nothing else.
"""
import argparse
import csv
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = """
[run]
device = "cpu"
threads = 1
output = "out"
validate_every = 0
[task]
use = "gpt"
data = ["text.bin"]
validation = 0
sample_bytes = 0
[optimizer]
use = "adamw"
learning_rate = 0.0003
[checkpoint]
use = "none"
[[monitor]]
use = "csv"
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def peak(process):
    """Waits for a process. Returns the peak of its resident memory in bytes."""
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit("shards.py: a rank failed: see above")
    return usage.ru_maxrss * 1024


def run_ranks(place, command):
    """Returns the highest peak of the two ranks."""
    port = str(free_port())
    ranks = []
    for rank in range(2):
        place_of_rank = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(subprocess.Popen(command, cwd=place, env={**os.environ, **place_of_rank}))
    return max(peak(one) for one in ranks)


def train(use, settings, args):
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "run.toml").write_text(RUN)
        (place / "text.bin").write_bytes(bytes(i * i % 251 for i in range(1 << 16)))
        command = [str(pathlib.Path(args.program).resolve()), "train", "run.toml", "--quiet"]
        command += [f"--set={one}" for one in settings + [f"distributed.use={use}"]]
        steps = f"--set=run.steps={args.steps}"
        memory = run_ranks(place, command + [steps])
        rows = list(csv.DictReader((place / "out/metrics.csv").open()))[1:]
        step = statistics.median(float(one["step_time"]) for one in rows)
        digest = json.loads((place / "out/summary.json").read_text())["digest"]
        if not args.resume:
            return memory, step, digest, 0
        saving = ["--set=run.output=saved", "--set=checkpoint.use=rolling", "--set=checkpoint.async=false"]
        run_ranks(place, command + saving + ["--set=run.steps=1"])
        return memory, step, digest, run_ranks(place, command + saving + ["--set=run.steps=2", "--resume"])


def main():
    parser = argparse.ArgumentParser()
    for key, value in {"layers": 12, "width": 768, "context": 128, "batch": 4, "steps": 6}.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--program", default=ROOT / "build/release/vernier")
    args = parser.parse_args()
    settings = [f"task.layers={args.layers}", f"task.width={args.width}", "task.heads=12",
                f"task.context={args.context}", f"task.batch_size={args.batch}"] + args.set
    first = None
    for use, own in (("ddp", []), ("zero1", []), ("zero3", []), ("zero3", ["distributed.keep_gathered=true"])):
        memory, step, digest, resumed = train(use, settings + own, args)
        first = first or (memory, step, digest)
        print(f"{use:6} {' '.join(own):31} {memory / 1e6:6.0f} MB ({memory / first[0]:.2f})  {1e3 * step:7.0f} ms a step "
              f"({step / first[1]:.2f})" + (f"  resumed: {resumed / 1e6:6.0f} MB" if args.resume else ""), flush=True)
        if digest != first[2]:
            sys.exit("shards.py: the weights differ from those of ddp")


if __name__ == "__main__":
    main()
