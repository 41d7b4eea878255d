#!/usr/bin/env python3
"""Times a step of two ranks with one thread each: Vernier's distributed/ddp against PyTorch's DistributedDataParallel
with Gloo, in turn on the same machine, and one process of Vernier with one thread.

    ./vernier build && python3 tests/benchmarks/ddp_rival.py [--rounds 5] [--steps 40] [--overlap]
        [--program build/release/vernier]

Both train an MLP of 10 million parameters on 64 samples with AdamW in float32. A round trains some steps; the first
tenth of them is left out. Needs torch 2.11.0 for Python. Use a machine that does nothing else.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

INPUTS, HIDDEN, CLASSES, BATCH = 1024, [2048, 2048, 1792], 10, 64
ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = f"""
[run]
device = "cpu"
threads = 1
output = "out"
validate_every = 0
[task]
use = "mlp"
inputs = {INPUTS}
hidden = {HIDDEN}
classes = {CLASSES}
samples = 4096
batch_size = {BATCH}
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[distributed]
use = "ddp"
[[monitor]]
use = "csv"
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def started(command, ranks, folder):
    """The processes of all ranks, with the variables of torchrun."""
    common = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                  OMP_NUM_THREADS="1")
    return [subprocess.Popen(command, cwd=folder, env=dict(common, RANK=str(rank)), stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)]


def output_of(processes):
    texts = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("ddp_rival.py: a rank failed: see above")
    return texts[0]


def vernier_step(program, ranks, steps, options):
    """Median of the seconds of a step, and of what is communication in it."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "run.toml").write_text(RUN)
        output_of(started([program, "train", "run.toml", "--quiet", f"--set=run.steps={steps}", *options], ranks, folder))
        lines = (pathlib.Path(folder) / "out/metrics.csv").read_text().splitlines()
        names = lines[0].split(",")
        rows = [dict(zip(names, line.split(","))) for line in lines[1 + steps // 10:]]
        median = {name: statistics.median(float(row[name]) for row in rows if row.get(name))
                  for name in ("step_time", "communication_time") if name in names}
        return median["step_time"], median.get("communication_time", 0.0)


def pytorch_rank(steps):
    import torch
    import torch.distributed
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    widths = [INPUTS, *HIDDEN]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, y = torch.randn(4096, INPUTS), torch.randint(CLASSES, (4096,))
    share = BATCH // torch.distributed.get_world_size()
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        some = torch.randint(4096, (share,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    print(json.dumps(statistics.median(times[steps // 10:])))
    torch.distributed.destroy_process_group()


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--steps", type=int, default=40)
    parse.add_argument("--program", default=str(ROOT / "build/release/vernier"))
    parse.add_argument("--overlap", action="store_true", help="sum gradients while backward runs")
    parse.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.rank:
        return pytorch_rank(given.steps)
    options = ["--set=distributed.overlap=true"] if given.overlap else []
    rows = {"vernier, 2 ranks": [], "  communication": [], "PyTorch DDP, 2 ranks": [], "vernier, 1 rank": []}
    for _ in range(given.rounds):
        step, communication = vernier_step(os.path.abspath(given.program), 2, given.steps, options)
        rows["vernier, 2 ranks"].append(step)
        rows["  communication"].append(communication)
        rival = [sys.executable, os.path.abspath(__file__), "--rank", f"--steps={given.steps}"]
        rows["PyTorch DDP, 2 ranks"].append(float(output_of(started(rival, 2, None))))
        rows["vernier, 1 rank"].append(vernier_step(os.path.abspath(given.program), 1, given.steps, options)[0])
    for name, times in rows.items():
        print(f"{name:22} {1e3 * statistics.median(times):8.1f} ms  ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})")
    ours, theirs = rows["vernier, 2 ranks"], rows["PyTorch DDP, 2 ranks"]
    print(f"against PyTorch DDP    {statistics.median(a / b for a, b in zip(ours, theirs)):8.2f}")
    alone = statistics.median(b / a for a, b in zip(ours, rows["vernier, 1 rank"]))
    print(f"2 ranks are            {alone:8.2f} times as fast as 1 rank")


if __name__ == "__main__":
    main()
