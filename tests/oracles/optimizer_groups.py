"""Records optimizer_groups.safetensors: sixteen optimizers over 100 steps in float32, each with two groups of parameters, a
frozen parameter, gradients that are missing in some steps, and skipped updates.

    python3 tests/oracles/optimizer_groups.py [--compare]

Fourteen are torch 2.11.0's own. Lion and LAMB, which torch does not have, are written below from their sources. All
tensors of a step are recorded flattened and concatenated in the order of NAMES. README.md says the rest.
"""

import torch
from oracle import Random, run

NAMES = {
    "a.weight": (17, 33),
    "a.bias": (7,),
    "b.weight": (3, 5),
    "b.scale": (),
    "c.kernel": (2, 3, 4),
    "d.bias": (9,),
    "d.frozen": (6, 4),
}
SECOND_GROUP = ("b.weight", "d.bias")
STEPS = 100
RECORDED = (2, 10, 100)
SKIPPED = (1, 4, 17, 42, 99)


def is_missing(step, index):
    """Whether a parameter has no gradient in a step. Steps are from 1."""
    return (step + index) % 7 == 0


class Lion:
    """lion_pytorch.py of github.com/google/automl (Chen et al., NeurIPS 2023), its step written as there."""

    def __init__(self, groups, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        self.groups = [{"lr": lr, "betas": betas, "weight_decay": weight_decay, **group} for group in groups]
        self.state = {}

    @torch.no_grad()
    def step(self):
        for group in self.groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                exp_avg = self.state.setdefault(p, torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lamb:
    """Algorithm 2 of You et al., ICLR 2020. As in the authors' code (lamb_optimizer.py of google-research/albert), the
    ratio is 1 where a norm is 0, and for parameters that are excluded from layer adaptation (trust_ratio=False)."""

    def __init__(self, groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, trust_ratio=True):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "trust_ratio": trust_ratio}
        self.groups = [{**defaults, **group} for group in groups]
        self.state = {}

    @torch.no_grad()
    def step(self):
        for group in self.groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                step, m, v = self.state.get(p, (0, torch.zeros_like(p), torch.zeros_like(p)))
                m = beta1 * m + (1 - beta1) * p.grad
                v = beta2 * v + (1 - beta2) * p.grad * p.grad
                self.state[p] = (step + 1, m, v)
                r = (m / (1 - beta1 ** (step + 1))) / ((v / (1 - beta2 ** (step + 1))).sqrt() + group["eps"])
                update = r + group["weight_decay"] * p
                weight_norm, update_norm = p.norm(), update.norm()
                ratio = 1.0
                if group["trust_ratio"] and weight_norm > 0 and update_norm > 0:
                    ratio = weight_norm / update_norm
                p.sub_(group["lr"] * ratio * update)


class MuonWithAdamW:
    """torch.optim.Muon for matrices, torch.optim.AdamW for the rest and for groups that say so, as its docs advise."""

    def __init__(self, groups, lr, adamw_lr, weight_decay=0.1, **muon):
        matrices, others = [], []
        for group in groups:
            rates = {"weight_decay": group.get("weight_decay", weight_decay)}
            is_for_muon = [p.dim() == 2 and not group.get("adamw", False) for p in group["params"]]
            of_muon = [p for p, is_one in zip(group["params"], is_for_muon) if is_one]
            of_adamw = [p for p, is_one in zip(group["params"], is_for_muon) if not is_one]
            matrices.append({"params": of_muon, "lr": group.get("lr", lr), **rates})
            others.append({"params": of_adamw, "lr": group.get("adamw_lr", adamw_lr), **rates})
        self.optimizers = [
            torch.optim.Muon([group for group in matrices if group["params"]], **muon),
            torch.optim.AdamW([g for g in others if g["params"]], betas=(0.9, 0.95), eps=1e-10, fused=True),
        ]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


# name: class, options of the first group, what the second group has instead
optim = torch.optim
CASES = {
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "fused": True}, {"lr": 0.002, "weight_decay": 0.0}),
    "adamw": (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "fused": True}, {"lr": 0.002, "weight_decay": 0.0}),
    "sgd": (  # its fused form fails where a parameter first has no gradient
        optim.SGD,
        {"foreach": False, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
        {"lr": 0.002, "weight_decay": 0.0},
    ),
    "rmsprop": (optim.RMSprop, {"foreach": False, "lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "momentum": 0.9}),
    "rmsprop_centered": (
        optim.RMSprop,
        {"foreach": False, "lr": 0.002, "momentum": 0.5, "eps": 0.1, "centered": True},
        {"lr": 0.002, "weight_decay": 0.1},
    ),
    "adagrad": (
        optim.Adagrad,
        {"foreach": False, "lr": 0.1, "lr_decay": 0.02, "initial_accumulator_value": 0.1, "weight_decay": 0.1},
        {"lr": 0.02, "weight_decay": 0.0},
    ),
    "lion": (Lion, {"lr": 0.001, "weight_decay": 0.1}, {"lr": 0.0002, "weight_decay": 0.0}),
    "adafactor": (optim.Adafactor, {"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "weight_decay": 0.0}),
    "lamb": (Lamb, {"lr": 0.01}, {"lr": 0.002, "weight_decay": 0.0, "trust_ratio": False}),
    "muon": (MuonWithAdamW, {"lr": 5e-5, "adamw_lr": 0.002}, {"lr": 2e-5, "weight_decay": 0.0}),
    "muon_rms": (
        MuonWithAdamW,
        {"lr": 5e-5, "adamw_lr": 0.002, "adjust_lr_fn": "match_rms_adamw"},
        {"adamw": True, "adamw_lr": 0.001},
    ),
    "adadelta": (optim.Adadelta, {"foreach": False, "lr": 0.5, "weight_decay": 0.1}, {"lr": 0.2, "weight_decay": 0.0}),
    "nadam": (optim.NAdam, {"foreach": False, "lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "weight_decay": 0.0}),
    "nadam_decoupled": (
        optim.NAdam,
        {"foreach": False, "momentum_decay": 0.05, "betas": (0.8, 0.95), "decoupled_weight_decay": True},
        {"weight_decay": 0.1},
    ),
    "radam": (optim.RAdam, {"foreach": False, "lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "weight_decay": 0.0}),
    "radam_decoupled": (
        optim.RAdam,
        {"foreach": False, "lr": 0.01, "betas": (0.8, 0.95), "decoupled_weight_decay": True},
        {"weight_decay": 0.1},
    ),
    "adamax": (optim.Adamax, {"foreach": False, "lr": 0.01, "weight_decay": 0.1}, {"lr": 0.002, "weight_decay": 0.0}),
    "rprop": (optim.Rprop, {"foreach": False, "etas": (0.4, 1.1), "step_sizes": (1e-4, 0.1)}, {"lr": 0.002}),
    "asgd": (
        optim.ASGD,
        {"foreach": False, "lr": 0.05, "lambd": 0.01, "t0": 20, "weight_decay": 0.1},
        {"lr": 0.02, "weight_decay": 0.0},
    ),
}

# L-BFGS has one group, and its own function: see loss_of.
LBFGS = {"lbfgs": {"lr": 0.5, "max_iter": 4}, "lbfgs_wolfe": {"lr": 1, "max_iter": 4, "line_search_fn": "strong_wolfe"}}


def coefficient(step):
    """1, 1.25, 1.5, 1.75, 2, 1, ... from step 1: exact in float32."""
    return 1.0 + 0.25 * ((step - 1) % 5)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def train(case, start, target):
    """Yields (step, parameters) after the steps to record."""
    optimizer_class, options, second = case
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    trained = [name for name in NAMES if name != "d.frozen"]
    groups = [
        {"params": [parameters[name] for name in trained if name not in SECOND_GROUP]},
        {"params": [parameters[name] for name in SECOND_GROUP], **second},
    ]
    optimizer = optimizer_class(groups, **options)
    for step in range(1, STEPS + 1):
        for index, name in enumerate(trained):
            gradient = (parameters[name].detach() - target[name]) * coefficient(step)
            parameters[name].grad = None if is_missing(step, index) else gradient
        if step not in SKIPPED:
            optimizer.step()
        if step in RECORDED:
            yield step, flat(parameters.values())


def loss_of(parameters, target, curvature):
    """Sets the gradients, and returns the loss. a.bias is not part of it, and gets no gradient."""
    loss = torch.zeros(())
    for name, parameter in parameters.items():
        if name in ("a.bias", "d.frozen"):
            continue
        distance = parameter.detach() - target[name]
        squares = distance * distance
        loss = loss + (0.5 * curvature[name] * squares + 0.25 * squares * squares).sum()
        parameter.grad = curvature[name] * distance + squares * distance
    return loss


def train_lbfgs(options, start, target, curvature):
    """Yields (step, parameters) after the steps to record."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = optim.LBFGS([value for name, value in parameters.items() if name != "d.frozen"], **options)
    for step in range(1, STEPS + 1):
        if step not in SKIPPED:
            optimizer.step(lambda: loss_of(parameters, target, curvature))
        if step in RECORDED:
            yield step, flat(parameters.values())


def record():
    random = Random(18)
    start = {name: random.uniform(shape, 1.0) for name, shape in NAMES.items()}
    target = {name: random.uniform(shape, 1.0) for name, shape in NAMES.items()}
    curvature = {name: random.uniform(shape, 1.0) + 2.0 for name, shape in NAMES.items()}
    tensors = {"start": flat(start.values()), "target": flat(target.values()), "curvature": flat(curvature.values())}
    for name, case in CASES.items():
        for step, parameters in train(case, start, target):
            tensors[f"{name}.{step}"] = parameters
    for name, options in LBFGS.items():
        for step, parameters in train_lbfgs(options, start, target, curvature):
            tensors[f"{name}.{step}"] = parameters
    return tensors


if __name__ == "__main__":
    run("optimizer_groups", record)
