#!/usr/bin/env python3
"""Measures memory and processor time of runs on large files, until two steps are done.

    ./vernier build && python3 tests/benchmarks/large_data.py [table text tokens] [--set KEY=VALUE]
        [--program build/release/vernier] [--folder FOLDER] [--share 1.0]

The whole files have 5 million rows of 10 columns, 1 GB of text, and 1 GB of tokens of uint16. Each is trained on by two
steps, at a quarter of its size and whole. Prints for each run the size of its file, the peak of resident memory, of that
the anonymous part (which the system cannot drop), the processor's time and the digest of the weights. --share makes all
files smaller. The files are written into FOLDER, and removed at the end. The anonymous memory needs Linux.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = """
[run]
device = "cpu"
threads = 2
steps = 2
validate_every = 0
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
"""
TASKS = {
    "table": 'use = "tabular"\ndata = "table"\ntarget = "y"\nhidden = [8]\nvalidation_share = 0.001\n',
    "text": 'use = "gpt"\ndata = ["text"]\ncontext = 64\nlayers = 1\nwidth = 32\nsample_bytes = 0\n',
    "tokens": 'use = "llama"\nfolder = "model"\nweights = "random"\ndata = ["tokens"]\ntoken_type = "uint16"\n'
    "context = 64\nvalidation_share = 0.001\n",
}
MODEL = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "vocab_size": 1024, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}


def block_of(kind):
    """Returns a block that a file repeats, and how often the whole file has it."""
    drawn = random.Random(1)
    if kind == "table":
        rows = [",".join(f"{drawn.gauss(0, 9):.4f}" for _ in range(8)) + f",{drawn.choice('pqrs')},{drawn.random():.3f}\n"
                for _ in range(50_000)]
        return "".join(rows).encode(), 100
    if kind == "text":
        return drawn.randbytes(10_000_000).translate((b"etaoin shrdlu.\n " * 16)[:256]), 100
    return b"".join(drawn.randrange(1024).to_bytes(2, "little") for _ in range(500_000)), 1000


def write(kind, path, share):
    block, times = block_of(kind)
    with open(path, "wb") as file:
        if kind == "table":
            file.write(b"a,b,c,d,e,f,g,h,k,y\n")
        for _ in range(max(1, round(times * share))):
            file.write(block)


def anonymous(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(command, folder):
    process = subprocess.Popen(command, cwd=folder)
    most = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid != 0:
            break
        most = max(most, anonymous(process.pid))
        time.sleep(0.002)
    if status != 0:
        sys.exit("large_data.py: the run failed: see above")
    return usage.ru_maxrss * 1024, most, usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", choices=[[], *TASKS], default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--program", default=ROOT / "build/release/vernier")
    parser.add_argument("--folder")
    parser.add_argument("--share", type=float, default=1.0)
    args = parser.parse_args()
    program = str(pathlib.Path(args.program).resolve())
    print("| | file | resident | anonymous | processor | digest |\n| --- | --- | --- | --- | --- | --- |")
    for kind in args.kinds or TASKS:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            place = pathlib.Path(folder)
            (place / "model").mkdir()
            (place / "model/config.json").write_text(json.dumps(MODEL))
            (place / "run.toml").write_text(RUN + "[task]\n" + TASKS[kind])
            for share in (0.25, 1.0):
                write(kind, place / kind, share * args.share)
                size = (place / kind).stat().st_size
                command = [program, "train", "run.toml", "--quiet", f"--set=run.output=out-{share}"]
                resident, private, seconds = measure(command + [f"--set={one}" for one in args.set], folder)
                digest = json.loads((place / f"out-{share}/summary.json").read_text())["digest"]
                print(f"| {kind} | {size / 1e6:,.0f} MB | {resident / 1e6:,.0f} MB | {private / 1e6:,.0f} MB "
                      f"| {seconds:.1f} s | {digest} |", flush=True)


if __name__ == "__main__":
    main()
