"""Records grad_scaler.safetensors: torch.amp.GradScaler('cpu') of torch 2.11.0 over patterns of inf and nan.

    python3 tests/oracles/grad_scaler.py [--compare]

`rule.*` is the scale's rule: 24 cases of 200 steps of scale, backward, step, update with a real SGD on one weight.
`unscale.*` is the arithmetic of unscale_: gradients of random bits times the float32 reciprocal of a scale.
What each tensor means and how to repeat it in C++ is in README.md.
"""

import torch
from oracle import Random, run

STEPS = 200

# initial scale, growth factor, backoff factor, growth interval, bad steps per thousand
CASES = [
    (65536.0, 2.0, 0.5, 2000, 50),  # never grows: the defaults
    (65536.0, 2.0, 0.5, 20, 20),
    (65536.0, 2.0, 0.5, 7, 50),
    (65536.0, 2.0, 0.5, 3, 100),
    (65536.0, 2.0, 0.5, 2, 300),
    (65536.0, 2.0, 0.5, 1, 500),
    (65536.0, 2.0, 0.5, 1, 0),  # grows to 2^127 and stays there: the growth guard
    (2.0**126, 2.0, 0.5, 1, 50),  # at the guard from the start
    (3e38, 1.001, 0.9, 2, 50),  # at the guard; the reciprocal is a denormal
    (3.4e38, 4.0, 0.25, 3, 100),
    (1.0, 2.0, 0.5, 1, 800),  # shrinks far below 1: there is no minimum
    (1.0, 2.0, 0.5, 1, 1000),  # shrinks through the denormals to 0
    (2.0**-140, 2.0, 0.5, 2, 100),  # a denormal scale: the reciprocal is inf, the weight is lost, no step is skipped
    (1e-30, 1.5, 0.75, 1, 200),
    (1e-38, 1.25, 0.8, 4, 150),
    (1000.0, 1.1, 0.9, 5, 100),
    (0.1, 3.0, 0.3, 4, 200),
    (123.456, 1.0000001, 0.999, 1, 300),  # the factors are doubles: float32 factors give another scale
    (2.0**24, 10.0, 0.1, 10, 50),
    (8.0, 2.0, 0.5, 50, 5),
    (65535.7, 1.7, 0.001, 2, 30),
    (4096.0, 1.01, 0.99, 1, 400),
    (2.0**32, 2.0, 0.5, 13, 120),
    (3.0, 1.3333333333333333, 0.6666666666666666, 6, 70),
]


def loss_factor(step):
    """The loss of step k (from 0) is weight * loss_factor(k); exact in float32."""
    return ((step * 37) % 101 - 50) / 1024


def rule():
    random = Random(1)
    columns = {key: [] for key in ("pattern", "scale", "growth_tracker", "found_inf", "weight")}
    for initial, growth, backoff, interval, bad in CASES:
        pattern = random.integers(0, 1000, (STEPS,))
        pattern = torch.where(pattern < bad, 1 + pattern % 2, 0).to(torch.uint8)
        weight = torch.nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
        )
        rows = {key: [] for key in columns}
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(weight * loss_factor(step)).backward()
            if pattern[step] == 1:
                weight.grad.fill_(float("inf") if step % 2 == 0 else float("-inf"))
            elif pattern[step] == 2:
                weight.grad.fill_(float("nan"))
            scaler.step(optimizer)
            (found_inf,) = scaler._found_inf_per_device(optimizer).values()
            scaler.update()
            rows["scale"].append(scaler._scale.clone())
            rows["growth_tracker"].append(scaler._growth_tracker.clone())
            rows["found_inf"].append(found_inf.clone())
            rows["weight"].append(weight.detach().clone())
        columns["pattern"].append(pattern)
        for key in rows:
            if key != "pattern":
                columns[key].append(torch.stack(rows[key]))
    tensors = {"rule." + key: torch.stack(value) for key, value in columns.items()}
    for index, key in enumerate(("init_scale", "growth_factor", "backoff_factor")):
        tensors["rule." + key] = torch.tensor([case[index] for case in CASES], dtype=torch.float64)
    tensors["rule.growth_interval"] = torch.tensor([case[3] for case in CASES], dtype=torch.int64)
    return tensors


SCALES = [65536.0, 1.0, 3.0, 0.1, 1e-3, 123.456, 2.0**24, 2.0**127, 3.4e38, 1e-38, 2.0**-126, 1e-40]


def random_bits(random, dtype, count):
    """Any float of the type, each exponent as likely as another: denormals, huge ones, inf and nan among them."""
    bits = 32 if dtype == torch.float32 else 16
    values = random.integers(-(1 << bits - 1), 1 << bits - 1, (count,))
    return values.to(torch.int32 if bits == 32 else torch.int16).view(dtype)


def unscale():
    """Rows come in pairs for each scale: the first has only finite gradients, the second an inf or nan at least."""
    random = Random(2)
    tensors = {}
    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f16")):
        before, after, found = [], [], []
        for scale in SCALES:
            for finite_only in (True, False):
                grad = random_bits(random, dtype, 259)
                if finite_only:
                    grad = torch.where(grad.isfinite(), grad, torch.ones_like(grad))
                else:
                    row = len(before) // 2
                    grad[(0, 258, 128, 7)[row % 4]] = float(("inf", "nan", "-inf")[row % 3])
                parameter = torch.nn.Parameter(torch.zeros(259, dtype=dtype))
                optimizer = torch.optim.SGD([parameter], lr=1.0)
                scaler = torch.amp.GradScaler("cpu", init_scale=scale)
                scaler.scale(torch.zeros(()))
                parameter.grad = grad.clone()
                inverse = scaler._scale.double().reciprocal().float()
                if dtype == torch.float16:  # unscale_ refuses them ("Attempting to unscale FP16 gradients"): its kernel
                    found_inf = torch.zeros(())
                    torch._amp_foreach_non_finite_check_and_unscale_([parameter.grad], found_inf, inverse)
                else:
                    scaler.unscale_(optimizer)
                    (found_inf,) = scaler._found_inf_per_device(optimizer).values()
                before.append(grad)
                after.append(parameter.grad)
                found.append(found_inf)
        tensors[f"unscale.{name}.before"] = torch.stack(before)
        tensors[f"unscale.{name}.after"] = torch.stack(after)
        tensors[f"unscale.{name}.found_inf"] = torch.stack(found)
    scales = torch.tensor(SCALES).repeat_interleave(2)
    tensors["unscale.scale"] = scales
    tensors["unscale.inv_scale"] = scales.double().reciprocal().float()
    return tensors


if __name__ == "__main__":
    run("grad_scaler", lambda: {**rule(), **unscale()})
