"""Records scale_rules.safetensors: the loss scales of four projects' own code over 10,000 random sequences of infs each.

    python3 tests/oracles/scale_rules.py SOURCES [--compare]

SOURCES is a folder with three files of the projects, which are not kept here:

    deepspeed_loss_scaler.py   deepspeed/runtime/fp16/loss_scaler.py of DeepSpeed 0.19.6 (commit edaa7221)
    megatron_grad_scaler.py    megatron/core/optimizer/grad_scaler.py of megatron-core 0.16.1 (its wheel)
    apex_scaler.py             apex/amp/scaler.py of apex, the last commit before it was taken out (e13873de)

Their classes run as they are; what they import besides torch is replaced by nothing, and "cuda" by "cpu". PyTorch's is
torch.amp.GradScaler('cpu') of torch 2.11.0. Only a digest of each sequence is kept: README.md says how to repeat it.
"""

import os
import struct
import sys
import types

import torch
from oracle import run

SEQUENCES, STEPS = 10_000, 100
MASK = (1 << 64) - 1


class SplitMix:
    """Sebastiano Vigna's splitmix64: the same numbers in any language."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


class Case:
    """What a sequence starts from; drawn in this order."""

    def __init__(self, project, index):
        self.random = SplitMix(project * 10_000_000 + index)
        draw = self.random.next
        self.init = 2.0 ** (4 + draw() % 20)
        self.interval = 1 + draw() % 12
        self.hysteresis = 1 + draw() % 4
        self.minimum = 2.0 ** (3 - int(draw() % 8))
        self.growth = (2.0, 1.5, 4.0, 1.001)[draw() % 4]  # of PyTorch alone
        self.backoff = (0.5, 0.75, 0.1, 0.999)[draw() % 4]
        self.consecutive = draw() % 2 == 1  # of DeepSpeed alone
        self.bad = (20, 100, 300, 600)[draw() % 4]

    def overflows(self):
        return self.random.next() % 1000 < self.bad


def module(sources, name, imports):
    """The file as a module whose imports, but torch and the standard library's, are the given names."""
    with open(os.path.join(sources, name + ".py")) as file:
        text = file.read().replace("device='cuda'", "device='cpu'").replace("torch.cuda.IntTensor", "torch.IntTensor")
    lines, skipping = [], False
    for line in text.splitlines():
        foreign = line.startswith(("from deepspeed", "from ..", "from ._"))
        if foreign:
            skipping = "(" in line and ")" not in line
            continue
        if skipping:
            skipping = ")" not in line
            continue
        lines.append(line)
    made = types.ModuleType(name)
    made.__dict__.update(imports)
    sys.modules[name] = made
    exec(compile("\n".join(lines), name, "exec"), made.__dict__)
    return made


class Nothing:
    def __getattr__(self, name):
        return lambda *arguments, **options: 0


class PyTorch:
    def __init__(self, case):
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=case.init, growth_factor=case.growth, backoff_factor=case.backoff,
            growth_interval=case.interval,
        )
        self.scaler.scale(torch.zeros(()))

    def update(self, overflow):
        state = self.scaler._per_optimizer_states[0]
        state["found_inf_per_device"] = {torch.device("cpu"): torch.tensor(float(overflow))}
        self.scaler.update()
        scale = self.scaler._scale.item()
        if scale < 2.0**-126:
            raise ArithmeticError  # Vernier ends the run here
        return scale


def deepspeed(sources):
    loaded = module(sources, "deepspeed_loss_scaler",
                    {"DeepSpeedConfigObject": object, "dist": Nothing(), "logger": Nothing()})

    class DeepSpeed:
        def __init__(self, case):
            self.scaler = loaded.DynamicLossScaler(
                init_scale=case.init, scale_window=case.interval, min_scale=case.minimum,
                delayed_shift=case.hysteresis, consecutive_hysteresis=case.consecutive,
            )

        def update(self, overflow):
            self.scaler.update_scale(overflow)
            return self.scaler.cur_scale

    return DeepSpeed


def megatron(sources):
    loaded = module(sources, "megatron_grad_scaler", {})

    class Megatron:
        def __init__(self, case):
            self.scaler = loaded.DynamicGradScaler(
                initial_scale=case.init, min_scale=case.minimum, growth_factor=2.0, backoff_factor=0.5,
                growth_interval=case.interval, hysteresis=case.hysteresis,
            )

        def update(self, overflow):
            self.scaler.update(overflow)
            return self.scaler.scale.item()

    return Megatron


def apex(sources):
    loaded = module(sources, "apex_scaler", {"multi_tensor_applier": types.SimpleNamespace(available=False, import_err=None),
                                             "maybe_print": lambda *a, **k: None})

    class Apex:
        def __init__(self, case):
            self.scaler = loaded.LossScaler("dynamic", init_scale=case.init, scale_window=case.interval)

        def update(self, overflow):
            self.scaler._has_overflow = overflow
            self.scaler.update_scale()
            return self.scaler.loss_scale()

    return Apex


def digest(scaler, case):
    value = 2166136261
    for _ in range(STEPS):
        try:
            scale = scaler.update(case.overflows())
        except Exception:  # the project, or Vernier, ends the run
            return (value ^ 0xDEAD) * 16777619 & 0xFFFFFFFF
        (bits,) = struct.unpack("<I", struct.pack("<f", scale))
        value = (value ^ bits) * 16777619 & 0xFFFFFFFF
    return value


def record(sources):
    makers = {"pytorch": PyTorch, "deepspeed": deepspeed(sources), "megatron": megatron(sources), "apex": apex(sources)}
    tensors = {}
    for project, (name, make) in enumerate(makers.items()):
        digests = []
        for index in range(SEQUENCES):
            case = Case(project, index)
            digests.append(digest(make(case), case))
        tensors[name] = torch.tensor(digests, dtype=torch.int64).to(torch.uint32).view(torch.int32)
        print(name, "done")
    return tensors


if __name__ == "__main__":
    folder = sys.argv.pop(1)
    run("scale_rules", lambda: record(folder))
