"""Records optimizers.safetensors: AdamW, Adam and SGD of torch 2.11.0 on CPU, 100 steps each.

    python3 tests/oracles/optimizers.py [--compare]

Every case runs with fused=True (`<case>.*`) and, as a second opinion, with the plain loop over tensors
(`<case>.plain.*`). Gradients come from a formula that C++ repeats bit for bit, so they are not recorded.
All six tensors are recorded flattened and concatenated in the order of SHAPES. README.md says the rest.
"""

import torch
from oracle import Random, run

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (17, 33)]
STEPS = 100
RECORDED = (1, 10, 100)

# Overflows of the scaled cases: step (from 1) to what is put into the gradient of tensor (step % 6), first element.
OVERFLOWS = {4: "inf", 5: "nan", 17: "-inf", 40: "nan", 41: "inf", 42: "inf", 77: "nan", 99: "inf"}


def learning_rate(step):
    """Of the cases with a schedule; steps from 1, all in double."""
    return 0.01 / (1.0 + 0.1 * (step - 1))


# name: class, options, learning rate by step, way of the scaler
ADAMW, ADAM, SGD = torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD
CASES = {
    "adamw": (ADAMW, {}, None, None),  # learning rate 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01
    "adamw_decay": (ADAMW, {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95)}, None, None),
    "adamw_amsgrad": (ADAMW, {"lr": 0.01, "amsgrad": True}, None, None),
    "adamw_maximize": (ADAMW, {"lr": 0.01, "maximize": True}, None, None),
    "adamw_schedule": (ADAMW, {"lr": 0.01, "weight_decay": 0.1}, learning_rate, None),
    "adamw_unscaled": (ADAMW, {"lr": 0.01}, None, "unscale"),  # unscale_, then a step that sees found_inf only
    "adamw_scaled": (ADAMW, {"lr": 0.01}, None, "step"),  # the fused step divides by the scale itself
    "adam": (ADAM, {}, None, None),
    "adam_l2": (ADAM, {"lr": 0.01, "weight_decay": 0.1}, None, None),
    "sgd": (SGD, {"lr": 0.01}, None, None),
    "sgd_momentum": (SGD, {"lr": 0.01, "momentum": 0.9}, None, None),
    "sgd_nesterov": (SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, None, None),
    "sgd_dampening": (SGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}, None, None),
    "sgd_l2": (SGD, {"lr": 0.01, "weight_decay": 0.1}, None, None),
    "sgd_schedule": (SGD, {"lr": 0.01, "momentum": 0.9}, learning_rate, None),
    "sgd_unscaled": (SGD, {"lr": 0.01, "momentum": 0.9}, None, "unscale"),
}


def coefficient(step):
    """1, 1.25, 1.5, 1.75, 2, 1, ... from step 1: exact in float32."""
    return 1.0 + 0.25 * ((step - 1) % 5)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def state(optimizer, parameters):
    """The optimizer's tensors by name; `step` has one number a tensor."""
    names = optimizer.state[parameters[0]].keys()
    return {name: flat([optimizer.state[p][name] for p in parameters]) for name in names}


def train(case, fused, start, target):
    """Yields (step, parameters, state, scale or None) after the steps to record."""
    optimizer_class, options, schedule, scaling = case
    parameters = [torch.nn.Parameter(value.clone()) for value in start]
    plain = {} if fused else {"foreach": False}
    optimizer = optimizer_class(parameters, fused=fused, **plain, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=10, enabled=scaling is not None)
    scaler.scale(torch.zeros(()))
    for step in range(1, STEPS + 1):
        if schedule is not None:
            optimizer.param_groups[0]["lr"] = schedule(step)
        for index, (parameter, goal) in enumerate(zip(parameters, target)):
            gradient = (parameter.detach() - goal) * coefficient(step)
            if scaling is not None:
                gradient = gradient * scaler._scale
                if step in OVERFLOWS and index == step % len(SHAPES):
                    gradient.view(-1)[0] = float(OVERFLOWS[step])
            parameter.grad = gradient
        if scaling == "unscale":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        yield step, flat(parameters), state(optimizer, parameters), scaler._scale.clone() if scaling else None


def record():
    random = Random(4)
    start = [random.uniform(shape, 1.0) for shape in SHAPES]
    target = [random.uniform(shape, 1.0) for shape in SHAPES]
    target[4].view(-1)[:5] = start[4].view(-1)[:5]  # a gradient of exactly 0
    target[5].view(-1)[:5] = start[5].view(-1)[:5] + 1e-7  # and a tiny one
    tensors = {"start": flat(start), "target": flat(target)}
    for name, case in CASES.items():
        scales = []
        for step, parameters, held, scale in train(case, True, start, target):
            if scale is not None:
                scales.append(scale)
            if step in RECORDED:
                tensors[f"{name}.{step}.parameters"] = parameters
                for key, value in held.items():
                    tensors[f"{name}.{step}.{key}"] = value
        if scales:
            tensors[f"{name}.scales"] = torch.stack(scales)
        for step, parameters, _, _ in train(case, False, start, target):
            if step in RECORDED:
                tensors[f"{name}.plain.{step}.parameters"] = parameters
    return tensors


if __name__ == "__main__":
    run("optimizers", record)
