#!/usr/bin/env python3
"""PyTorch's four calls in a row, for tests/benchmarks/unscale_clip_step.cpp, which starts this and tells it how often.

    python3 unscale_clip_step_rival.py

Prints "four_calls", then "ready"; for each line `four_calls GRADIENT TIMES`, GRADIENT the size of the gradients, does them
and prints "done". Needs torch 2.11.0.
"""
import sys

import torch
from torch import nn


def four_calls(gradient):
    width = 256
    block = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,),
             (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    shapes = [(256, width), (128, width)] + block * 4 + [(width,), (width,), (256, width)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * gradient
    optimizer = torch.optim.AdamW(parameters, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.zeros(()))

    def run():
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update(1.0)

    return run


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    runs = {}
    print("four_calls\nready", flush=True)
    for line in sys.stdin:
        _, gradient, times = line.split()
        if gradient not in runs:
            runs[gradient] = four_calls(float(gradient))
        for _ in range(int(times)):
            runs[gradient]()
        print("done", flush=True)


if __name__ == "__main__" and torch.__version__.startswith("2.11."):
    main()
