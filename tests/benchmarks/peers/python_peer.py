"""A peer of peers.py in Python: python_peer.py PEER MODEL FOLDER PRECISION THREADS

PEER is eager, compile, lightning, accelerate, or nudged: eager from start weights that differ by a rounding. Like
peers_plain.cpp it reads numbers of steps from stdin, a line each, trains them, and answers with a line of JSON on stdout: {"seconds": 0.52, "losses": [2.31, 2.29]}. Before the first,
{"ready": true} says that it can train.
"""
import contextlib
import itertools
import json
import logging
import os
import pathlib
import sys
import time
import warnings

import models
import torch

now = time.process_time if os.environ.get("PEERS_CLOCK") == "cpu" else time.perf_counter
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Clock:
    """Called before each step. After the last one that was asked for it answers, and waits for the next number."""

    def __init__(self):
        self.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is not an answer
        self.steps_left, self.start, self.losses = 0, None, []

    def answer(self, **values):
        self.answers.write(json.dumps(values) + "\n")

    def step(self):
        if self.steps_left == 0:
            self.wait()
        self.steps_left -= 1

    def wait(self):
        end = now()
        if self.start is None:
            self.answer(ready=True)
        else:
            self.answer(seconds=end - self.start, losses=[loss.item() for loss in self.losses])
        line = sys.stdin.readline()
        if not line:
            os._exit(0)  # without the libraries' own ends
        self.steps_left, self.losses = int(line), []
        self.start = now()


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def autocast(precision):
    return torch.autocast("cpu", DTYPES[precision]) if precision in DTYPES else contextlib.nullcontext()


def eager(network, batches, precision, clock, forward=None):
    forward = network if forward is None else forward
    optimizer = optimizer_of(network)
    scaler = torch.amp.GradScaler("cpu") if precision == "fp16" else None
    for x, y in itertools.cycle(batches):
        clock.step()
        optimizer.zero_grad()
        with autocast(precision):
            loss = models.loss_of(forward(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        clock.losses.append(loss.detach())


def nudged(network, batches, precision, clock):
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(1 + torch.finfo(value.dtype).eps / 2 * torch.randn_like(value))
    eager(network, batches, precision, clock)


def compiled(network, batches, precision, clock):
    eager(network, batches, precision, clock, torch.compile(network))


def accelerate(network, batches, precision, clock):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision={"fp32": "no"}.get(precision, precision))
    if precision in DTYPES and not accelerator.native_amp:
        sys.exit(f"Accelerate has no {precision} on a CPU and trains in float32 without a word")
    network, optimizer = accelerator.prepare(network, optimizer_of(network))
    for x, y in itertools.cycle(batches):
        clock.step()
        optimizer.zero_grad()
        loss = models.loss_of(network(x), y)
        accelerator.backward(loss)
        optimizer.step()
        clock.losses.append(loss.detach())


def lightning(network, batches, precision, clock):
    import lightning
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, _):
            clock.step()
            loss = models.loss_of(self.network(batch[0]), batch[1])
            clock.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return optimizer_of(self.network)

    class Loader:
        def __len__(self):
            return 1 << 60  # with a length it need not look a batch ahead

        def __iter__(self):
            return itertools.cycle(batches)

    # Everything off that can be. The precision "16-mixed" becomes bfloat16 on a CPU, so its plugin stands there.
    choice = {"precision": "bf16-mixed"} if precision == "bf16" else {}
    if precision == "fp16":
        choice = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, barebones=True,
        enable_progress_bar=False, enable_model_summary=False, **choice
    ).fit(Module(), Loader())


def main():
    peer, name, folder, precision, threads = sys.argv[1:]
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(int(threads))
    network, batches = models.read(name, pathlib.Path(folder))
    {"eager": eager, "nudged": nudged, "compile": compiled, "lightning": lightning, "accelerate": accelerate}[peer](
        network, batches, precision, Clock()
    )


if __name__ == "__main__":
    main()
