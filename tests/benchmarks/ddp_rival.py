#!/usr/bin/env python3
"""Times a step of two ranks with one thread each: Vernier's distributed/ddp against PyTorch's DistributedDataParallel
with Gloo, in turn on the same machine, and one process of Vernier with one thread.

    ./vernier build && python3 tests/benchmarks/ddp_rival.py [--model mlp|gpt] [--rounds 5] [--steps 40] [--overlap]
        [--connections] [--program build/release/vernier]

Both train with AdamW in float32: an MLP of 10 million parameters on 64 samples, or the small GPT of peers.py on 16
windows. A round trains some steps; the first tenth of them is left out. Needs torch 2.11.0 for Python, and for the GPT
numpy and safetensors. Use a machine that does nothing else.
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
RUN = """
[run]
device = "cpu"
threads = 1
output = "out"
validate_every = 0
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[distributed]
use = "ddp"
[[monitor]]
use = "csv"
[task]
"""
TASKS = {
    "mlp": f"""use = "mlp"
inputs = {INPUTS}
hidden = {HIDDEN}
classes = {CLASSES}
samples = 4096
batch_size = {BATCH}
""",
    "gpt": """use = "gpt"
data = ["FOLDER/text.bin"]
layers = 2
width = 128
heads = 4
context = 128
batch_size = 16
validation = 0
sample_bytes = 0
""",
}


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


def vernier_step(program, run, ranks, steps, options):
    """Median of the seconds of a step, and of what is communication in it."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "run.toml").write_text(run)
        output_of(started([program, "train", "run.toml", "--quiet", f"--set=run.steps={steps}", *options], ranks, folder))
        lines = (pathlib.Path(folder) / "out/metrics.csv").read_text().splitlines()
        names = lines[0].split(",")
        rows = [dict(zip(names, line.split(","))) for line in lines[1 + steps // 10:]]
        median = {name: statistics.median(float(row[name]) for row in rows if row.get(name))
                  for name in ("step_time", "communication_time") if name in names}
        return median["step_time"], median.get("communication_time", 0.0)


def models():
    sys.path.insert(0, str(ROOT / "tests/benchmarks/peers"))
    import models
    return models


def mlp_and_batches(share):
    import torch
    widths = [INPUTS, *HIDDEN]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    x, y = torch.randn(4096, INPUTS), torch.randint(CLASSES, (4096,))

    def batch():
        some = torch.randint(4096, (share,))
        return x[some], y[some]

    return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], CLASSES)), batch


def gpt_and_batches(share):
    model = models().MODELS["gpt_small"]
    x, y = model.data(share)
    return model.network(), lambda: (x, y)


def pytorch_rank(name, steps):
    import torch
    import torch.distributed
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    ranks = torch.distributed.get_world_size()
    network, batch = mlp_and_batches(BATCH // ranks) if name == "mlp" else gpt_and_batches(16 // ranks)
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        x, y = batch()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    print(json.dumps(statistics.median(times[steps // 10:])))
    torch.distributed.destroy_process_group()


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", choices=TASKS, default="mlp")
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--steps", type=int, default=40)
    parse.add_argument("--program", default=str(ROOT / "build/release/vernier"))
    parse.add_argument("--overlap", action="store_true", help="sum gradients while backward runs")
    parse.add_argument("--connections", action="store_true", help="leave out the shared memory")
    parse.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.rank:
        return pytorch_rank(given.model, given.steps)
    options = ["--set=distributed.overlap=true"] if given.overlap else []
    options += ["--set=distributed.shared_memory=false"] if given.connections else []
    with tempfile.TemporaryDirectory() as folder:
        if given.model == "gpt":
            models().write("gpt_small", pathlib.Path(folder) / "gpt")
        measure(given, RUN + TASKS[given.model].replace("FOLDER", folder + "/gpt"), options)


def measure(given, run, options):
    program = os.path.abspath(given.program)
    rows = {"vernier, 2 ranks": [], "  communication": [], "PyTorch DDP, 2 ranks": [], "vernier, 1 rank": []}
    for _ in range(given.rounds):
        step, communication = vernier_step(program, run, 2, given.steps, options)
        rows["vernier, 2 ranks"].append(step)
        rows["  communication"].append(communication)
        rival = [sys.executable, os.path.abspath(__file__), "--rank", f"--model={given.model}", f"--steps={given.steps}"]
        rows["PyTorch DDP, 2 ranks"].append(float(output_of(started(rival, 2, None))))
        rows["vernier, 1 rank"].append(vernier_step(program, run, 1, given.steps, options)[0])
    for name, times in rows.items():
        print(f"{name:22} {1e3 * statistics.median(times):8.1f} ms  ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})")
    ours, theirs = rows["vernier, 2 ranks"], rows["PyTorch DDP, 2 ranks"]
    print(f"against PyTorch DDP    {statistics.median(a / b for a, b in zip(ours, theirs)):8.2f}")
    alone = statistics.median(b / a for a, b in zip(ours, rows["vernier, 1 rank"]))
    print(f"2 ranks are            {alone:8.2f} times as fast as 1 rank")


if __name__ == "__main__":
    main()
