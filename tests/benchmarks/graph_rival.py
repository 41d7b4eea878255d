"""Times a step of task/graph against task/script and Python's eager mode, of the same models.

    python3 tests/benchmarks/graph_rival.py BUILD_FOLDER

Needs torch 2.11. One thread, float32, AdamW, LibTorch's own kernels. Short and long runs take turns, three of each. A
number is the least time of a long run without the least of a short one, in milliseconds of processor time for each of the
steps between. Short steps need more of them to be seen, so each model has its own number.
"""

import importlib.util
import pathlib
import resource
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("export", HERE.parents[1] / "plugins/task/graph/export.py")
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)
torch.set_num_threads(1)
SAMPLES, BATCH, FEW, TURNS = 256, 16, 20, 3


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


def mlp():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


# The module, the shape of a sample, and the steps of a long run.
MODELS = {"mlp": (mlp, (16,), 12020), "cnn": (cnn, (3, 16, 16), 2020), "encoder": (Encoder, (24, 64), 620)}
RUN = """
[run]
steps = {steps}
threads = 1
matmul = "plain"
fused = false
output = "run"
[task]
use = "{task}"
model = "model.{ending}"
inputs = ["data.safetensors:x"]
target = "data.safetensors:y"
validation_share = 0
batch_size = {batch}
workers = 0
[precision]
use = "fp32"
[optimizer]
use = "adamw"
"""


def seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(build, folder, task, ending, steps):
    (folder / "run.toml").write_text(RUN.format(steps=steps, task=task, ending=ending, batch=BATCH))
    before = seconds_of_children()
    done = subprocess.run([build / "vernier", "train", "run.toml"], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return seconds_of_children() - before


def eager(model, x, y, steps):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    print(f"{'model':10} {'graph':>8} {'script':>8} {'eager':>8}  graph / script")
    for name, (kind, shape, many) in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            model, x, y = kind(), torch.randn(SAMPLES, *shape), torch.randint(0, 3, (SAMPLES,))
            save_file({"x": x, "y": y}, folder / "data.safetensors")
            export.save(model, [x[:4]], folder / "model.pt2")
            torch.jit.script(model.train()).save(folder / "model.pt")
            kinds = [
                lambda steps: run(build, folder, "graph", "pt2", steps),
                lambda steps: run(build, folder, "script", "pt", steps),
                lambda steps: eager(model, x, y, steps),
            ]
            turns = [[(kind(FEW), kind(many)) for kind in kinds] for _ in range(TURNS)]
            least = [[min(column) for column in zip(*times)] for times in zip(*turns)]
            graph, script, python = (1e3 * (long - short) / (many - FEW) for short, long in least)
            print(f"{name:10} {graph:8.3f} {script:8.3f} {python:8.3f}  {graph / script:.2f}", flush=True)


main()
