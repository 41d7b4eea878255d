"""Records schedules.safetensors: the schedulers of torch.optim.lr_scheduler, torch 2.11.0.

    python3 tests/oracles/schedules.py [--compare]

Of each case the learning rate of every update, float64, with a base rate of 1; one step() follows each update. The
plateaus also have the metrics that they see. README.md says the rest.
"""

import math

import torch
from oracle import Random, run
from torch.optim import lr_scheduler as s

UPDATES = 120

# The same options stand in tests/plugins/callback/schedule_oracle_test.cpp.
CASES = {
    "linear": lambda o: s.LinearLR(o, start_factor=0.25, end_factor=0.75, total_iters=40),
    "linear_down": lambda o: s.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=120),
    "cosine": lambda o: s.CosineAnnealingLR(o, T_max=120),
    "cosine_above_zero": lambda o: s.CosineAnnealingLR(o, T_max=120, eta_min=0.1),
    "polynomial": lambda o: s.PolynomialLR(o, total_iters=80, power=2.5),
    "exponential": lambda o: s.ExponentialLR(o, gamma=0.97),
    "step": lambda o: s.StepLR(o, step_size=25, gamma=0.5),
    "multi_step": lambda o: s.MultiStepLR(o, milestones=[10, 11, 60, 100], gamma=0.3),
    "one_cycle": lambda o: s.OneCycleLR(o, max_lr=1.0, total_steps=120, cycle_momentum=False),
    "one_cycle_linear": lambda o: s.OneCycleLR(
        o, max_lr=1.0, total_steps=120, pct_start=0.45, anneal_strategy="linear", div_factor=10.0,
        final_div_factor=100.0, cycle_momentum=False),
    "cosine_restarts": lambda o: s.CosineAnnealingWarmRestarts(o, T_0=30),
    "cosine_restarts_longer": lambda o: s.CosineAnnealingWarmRestarts(o, T_0=10, T_mult=2, eta_min=0.05),
    "warmup_then_cosine": lambda o: s.SequentialLR(
        o, [s.LinearLR(o, start_factor=0.1, total_iters=20), s.CosineAnnealingLR(o, T_max=100)], milestones=[20]),
    "three_phases": lambda o: s.SequentialLR(
        o,
        [s.ConstantLR(o, factor=1.0, total_iters=1), s.StepLR(o, step_size=7, gamma=0.5),
         s.ExponentialLR(o, gamma=0.9)],
        milestones=[15, 50]),
}

# min or max, and the options of ReduceLROnPlateau.
PLATEAUS = {
    "plateau": dict(mode="min", factor=0.5, patience=3),
    "plateau_cooldown": dict(mode="min", factor=0.1, patience=2, threshold=0.01, cooldown=4, min_lr=1e-3),
    "plateau_max": dict(mode="max", factor=0.3, patience=1, threshold=0.02, threshold_mode="abs"),
    "plateau_impatient": dict(mode="max", factor=0.8, patience=0),
}


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def metrics_of(number):
    """Falls for a while, then wanders; with a NaN."""
    noise = Random(number).normal((60,)).double()
    trend = torch.tensor([math.exp(-k / 12) for k in range(60)], dtype=torch.float64)
    values = 1 + trend + noise * 0.05
    values[17] = math.nan
    return values


def record():
    recorded = {}
    for name, make in CASES.items():
        o = optimizer()
        scheduler = make(o)
        rates = []
        for _ in range(UPDATES):
            rates.append(o.param_groups[0]["lr"])
            o.step()
            if len(rates) < UPDATES:
                scheduler.step()
        recorded[name] = torch.tensor(rates, dtype=torch.float64)
    for number, (name, options) in enumerate(PLATEAUS.items()):
        o = optimizer()
        scheduler = s.ReduceLROnPlateau(o, eps=0, **options)
        metrics = metrics_of(number)
        if options["mode"] == "max":
            metrics = -metrics + 3
        rates = []
        for value in metrics.tolist():
            o.step()
            scheduler.step(value)
            rates.append(o.param_groups[0]["lr"])
        recorded[name] = torch.tensor(rates, dtype=torch.float64)
        recorded[name + ".metrics"] = metrics
    return recorded


if __name__ == "__main__":
    run("schedules", record)
