"""Records half_weights.safetensors: hand-written O2 and O3 loops of torch 2.11.0 on a small net with batch normalisation.

    python3 tests/oracles/half_weights.py [--compare]

O2: 16-bit weights, AdamW on float32 masters; in float16 with a GradScaler whose first scale is too large. O3: AdamW on
the bfloat16 weights themselves. README.md says what each tensor means and how to repeat it in C++.
"""

import math

import torch
import torch.nn.functional as F
from oracle import Random, run

STEPS = 20
HALF = ("w1", "b1", "w2", "b2")  # the normalisation's stay in float32


def start():
    random = Random(7)
    return {
        "w1": random.uniform((24, 16), 1 / math.sqrt(16)),
        "b1": random.uniform((24,), 0.1),
        "bn_w": 1 + random.uniform((24,), 0.25),
        "bn_b": random.uniform((24,), 0.25),
        "w2": random.uniform((5, 24), 1 / math.sqrt(24)),
        "b2": random.uniform((5,), 0.1),
        "input": random.uniform((STEPS, 8, 16), 2.0),
        "target": random.integers(0, 5, (STEPS, 8)),
    }


def forward(p, mean, variance, x, target):
    x = F.linear(x, p["w1"], p["b1"])
    x = F.batch_norm(x, mean, variance, p["bn_w"], p["bn_b"], training=True, momentum=0.1, eps=1e-5)
    x = F.relu(x)
    return F.cross_entropy(F.linear(x, p["w2"], p["b2"]), target)


def train(values, dtype, masters, scaler):
    names = [key for key in values if key not in ("input", "target")]
    model = {key: values[key].to(dtype if key in HALF else torch.float32, copy=True).requires_grad_() for key in names}
    owned = {key: values[key].clone().requires_grad_() if masters and key in HALF else model[key] for key in names}
    mean, variance = torch.zeros(24), torch.ones(24)
    optimizer = torch.optim.AdamW(list(owned.values()), lr=0.01, weight_decay=0.1, fused=True)
    rows = {"loss": [], "scale": [], "found_inf": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = forward(model, mean, variance, values["input"][step], values["target"][step])
        scaler.scale(loss).backward()
        for key in names:
            if owned[key] is not model[key]:
                owned[key].grad = model[key].grad.float()
                model[key].grad = None
        found_inf = torch.zeros(())
        if scaler.is_enabled():
            scaler.unscale_(optimizer)
            (found_inf,) = scaler._found_inf_per_device(optimizer).values()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for key in names:
                if owned[key] is not model[key]:
                    model[key].copy_(owned[key])
        rows["loss"].append(loss.detach().clone())
        rows["scale"].append(torch.tensor(scaler.get_scale()))
        rows["found_inf"].append(found_inf.clone())
    tensors = {key: torch.stack(row) for key, row in rows.items()}
    tensors |= {"model." + key: model[key] for key in names}
    tensors |= {"owned." + key: owned[key] for key in names if owned[key] is not model[key]}
    return tensors | {"mean": mean, "variance": variance}


def record():
    values = start()
    tensors = dict(values)
    off = torch.amp.GradScaler("cpu", enabled=False)
    cases = {
        "o2_bf16": (torch.bfloat16, True, off),
        "o2_fp16": (torch.float16, True, torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=5)),
        "o3_bf16": (torch.bfloat16, False, off),
    }
    for case, arguments in cases.items():
        tensors |= {f"{case}.{key}": value for key, value in train(values, *arguments).items()}
    return tensors


if __name__ == "__main__":
    run("half_weights", record)
