#!/usr/bin/env python3
"""The rivals in Python of tests/benchmarks/step.cpp: a 32-32-10 network, batches of 8, float32, one thread, fused AdamW.

Needs torch 2.11.0 and, for their rows, accelerate and lightning:  python3 tests/benchmarks/rivals.py
Prints microseconds a step, the median and the least of many rounds taken in turn, so that a noisy machine disturbs all
of them alike. Run it beside `./vernier bench step` on the same machine. The last line is the rival of
unscale_clip_step.cpp.
"""
import statistics
import time
import warnings

import torch
from torch import nn
from torch.nn import functional

ROUNDS, STEPS = 30, 300


def network():
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


class Batches:
    """Shuffled batches of 8 by index_select, as the others take them."""

    def __init__(self):
        self.points, self.labels = torch.randn(1024, 32), torch.randint(10, (1024,))
        self.order, self.position = torch.randperm(1024), 0

    def next(self):
        if self.position == 1024:
            self.order, self.position = torch.randperm(1024), 0
        numbers = self.order[self.position:self.position + 8]
        self.position += 8
        return self.points.index_select(0, numbers), self.labels.index_select(0, numbers)


def pytorch(micro_batches=1):
    model, batches = network(), Batches()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        for _ in range(micro_batches):
            x, y = batches.next()
            loss = functional.cross_entropy(model(x), y)
            (loss if micro_batches == 1 else loss / micro_batches).backward()
        optimizer.step()

    return lambda: [step() for _ in range(STEPS)]


def accelerate(micro_batches=1):
    from accelerate import Accelerator

    accelerator, batches = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches), Batches()
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))

    def step():
        for _ in range(micro_batches):
            with accelerator.accumulate(model):
                x, y = batches.next()
                accelerator.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    return lambda: [step() for _ in range(STEPS)]


def lightning(micro_batches=1):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _):
            return functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), fused=True)

    class Loader:
        def __init__(self):
            self.batches = Batches()

        def __len__(self):
            return STEPS * micro_batches

        def __iter__(self):
            return (self.batches.next() for _ in range(STEPS * micro_batches))

    module, loader = Module(), Loader()

    def run():
        # Everything off that can be switched off.
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, barebones=True,
                                    accumulate_grad_batches=micro_batches)
        trainer.fit(module, loader)

    return run


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rivals = {}
    for make in (pytorch, accelerate, lightning):
        try:
            rivals[make.__name__] = make()
            rivals[make.__name__ + ", 4 micro-batches"] = make(4)
        except ImportError as missing:
            print(f"{make.__name__}: left out ({missing})")
    seconds = {name: [] for name in rivals}
    for round_ in range(-2, ROUNDS):
        for name, run in rivals.items():
            start = time.perf_counter()
            run()
            if round_ >= 0:
                seconds[name].append((time.perf_counter() - start) / STEPS)
    for name, times in seconds.items():
        print(f"  {name:26s} {statistics.median(times) * 1e6:10.1f} {min(times) * 1e6:10.1f} us a step")


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)  # Lightning tells of itself at each fit
    main()
