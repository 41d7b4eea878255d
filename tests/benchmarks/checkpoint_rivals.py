#!/usr/bin/env python3
"""What Python does with the tensors of tests/benchmarks/checkpoint.cpp, which starts this and tells it what to do when.

    python3 checkpoint_rivals.py FOLDER THREADS

Prints the names of what it can do, then "ready"; for each line with such a name does it and prints "done". "after" waits
for what was begun and takes away what was written. Needs torch 2.11.0 and safetensors.
"""
import os
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from safetensors.torch import load_file, load_model, save_file

LAYERS, WIDTH, VOCABULARY, CONTEXT = 29, 424, 3200, 256


def gpt_tensors():
    shapes = {
        "wte.weight": (VOCABULARY, WIDTH),
        "wpe.weight": (CONTEXT, WIDTH),
        "ln_f.weight": (WIDTH,),
        "ln_f.bias": (WIDTH,),
    }
    for i in range(LAYERS):
        for norm in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{norm}.weight"] = shapes[f"h.{i}.{norm}.bias"] = (WIDTH,)
        for name, inputs, outputs in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = (inputs, outputs), (outputs,)
    for i in range(4):
        shapes[f"step.{i}"] = ()
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def main():
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")
    talk, sys.stdout = sys.stdout, sys.stderr
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    live = gpt_tensors()
    into = {name: torch.empty_like(tensor) for name, tensor in live.items()}
    there = {kind: os.path.join(folder, "python." + kind) for kind in ("safetensors", "pt", "dcp")}
    save_file(live, there["safetensors"])
    torch.save(live, there["pt"])
    dcp.save(live, checkpoint_id=there["dcp"])
    written, begun = os.path.join(folder, "python.written"), []

    def restore(loaded):
        for name, tensor in loaded.items():
            into[name].copy_(tensor)

    model = nn.Module()  # of flat names: a parameter's has no dots
    for name, tensor in live.items():
        model.register_parameter(name.replace(".", "_"), nn.Parameter(tensor.clone()))
    there["model"] = os.path.join(folder, "python.model")
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, there["model"])

    def clone(loaded):
        return {name: tensor.clone() for name, tensor in loaded.items()}

    def after():
        while begun:
            begun.pop().result()
        shutil.rmtree(written, ignore_errors=True)
        if os.path.exists(written):
            os.remove(written)

    do = {
        "safetensors save_file": lambda: save_file(live, written),
        "torch.save": lambda: torch.save(live, written),
        "DCP save": lambda: dcp.save(live, checkpoint_id=written),
        "safetensors load_file, copied": lambda: restore(load_file(there["safetensors"])),
        "safetensors load_file, cloned": lambda: clone(load_file(there["safetensors"])),
        "safetensors load_model": lambda: load_model(model, there["model"]),
        "safetensors load_file, which maps and reads nothing": lambda: load_file(there["safetensors"]),
        "torch.load": lambda: restore(torch.load(there["pt"])),
        "DCP load": lambda: dcp.load(into, checkpoint_id=there["dcp"]),
        "DCP async_save": lambda: begun.append(dcp.async_save(live, checkpoint_id=written)),
        "after": after,
    }
    for name in do:
        print(name, file=talk)
    print("ready", file=talk, flush=True)
    for line in sys.stdin:
        do[line.strip()]()
        print("done", file=talk, flush=True)


if __name__ == "__main__":
    main()
