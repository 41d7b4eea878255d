"""Records ema.safetensors: torch.optim.swa_utils.AveragedModel of torch 2.11.0 with get_ema_multi_avg_fn, on CPU.

    python3 tests/oracles/ema.py [--compare]

The weights of each step are recorded, flattened and concatenated, and for each case the averages after RECORDED
updates. README.md says the rest.
"""

import torch
from oracle import Random, run
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (9, 11)]
STEPS = 60
RECORDED = (1, 2, 10, 60)

# name: decay, the rule of the first updates, type of the weights
CASES = {
    "slow": (0.999, False, torch.float32),
    "quick": (0.9, False, torch.float32),
    "mostly_new": (0.25, False, torch.float32),  # lerp's other half
    "warmup": (0.999, True, torch.float32),
    "warmup_ends": (0.7, True, torch.float32),
    "bf16": (0.9, False, torch.bfloat16),  # averaged by hand in float32, as AveragedModel keeps the type of the weights
    "double": (0.999, True, torch.float64),
}


class Weights(torch.nn.Module):
    def __init__(self, tensors):
        super().__init__()
        self.all = torch.nn.ParameterList(tensors)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def decay_of(case, n):
    decay, warmup, _ = case
    return min(decay, (1 + n) / (10 + n)) if warmup else decay


def record():
    random = Random(17)
    scale = [10.0 ** (i % 5 - 2) for i in range(len(SHAPES))]
    start = [random.normal(shape) * s for shape, s in zip(SHAPES, scale)]
    steps = [[w + random.normal(w.shape) * s * 0.1 for w, s in zip(start, scale)] for _ in range(STEPS)]
    recorded = {"weights": torch.stack([flat(step) for step in steps])}
    for name, case in CASES.items():
        dtype = case[2]
        kept = torch.float32 if dtype == torch.bfloat16 else dtype
        model = Weights([w.to(kept) for w in start])
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for n, step in enumerate(steps):
            with torch.no_grad():
                for parameter, w in zip(model.all, step):
                    parameter.copy_(w.to(dtype))
            average.multi_avg_fn = get_ema_multi_avg_fn(decay_of(case, n))
            average.update_parameters(model)
            if n + 1 in RECORDED:
                recorded[f"{name}.{n + 1}"] = flat(average.module.all)
    return recorded


if __name__ == "__main__":
    run("ema", record)
