"""Saves models that a file of torch.export can hold, and models that it cannot: save() must tell them apart.

    python3 tests/plugins/task/graphs/faithful.py

Each row of the table has a model, its examples, and what the refusal must name; "" for a model that must be saved. The
model must be as it was afterwards: its modes, parameters, gradients and buffers, and torch's random numbers.
"""

import pathlib
import random
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.append(str(pathlib.Path(__file__).resolve().parents[4] / "plugins/task/graph"))
import export  # noqa: E402

torch.set_num_threads(1)


class Two(nn.Module):
    """Two layers, and a function of them and x."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 4), nn.Linear(4, 3), function
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        return self.function(self, x)


def of_own_backward(backward, forward=lambda x: x.clone()):
    name = "Own"
    own = type(name, (torch.autograd.Function,), {"forward": staticmethod(lambda ctx, x: forward(x)),
                                                  "backward": staticmethod(lambda ctx, g: backward(g))})  # fmt: skip
    return Two(lambda m, x: m.second(own.apply(m.first(x))))


class Square(torch.autograd.Function):
    """A backward pass that is the derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def hooked(register):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    register(model)
    return model


def scaled(by):
    return lambda module, given, made: tuple(None if grad is None else by * grad for grad in given)


def update(parameter):
    with torch.no_grad():
        parameter.sub_(parameter.grad)
    parameter.grad = None


def tensor_hook(model, x):
    hidden = model.first(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda grad: 3 * grad)
    return model.second(hidden)


def without_gradient(mode):
    def forward(model, x):
        with mode():
            hidden = model.first(x)
        return model.second(x + hidden.clone())

    return Two(forward)


def counted(model, x):
    model.count = model.count + 1
    return model.second(x) * model.count


def counted_in_python(model, x):
    model.calls += 1
    return model.second(x) * model.calls


class InPlace(torch.autograd.Function):
    """Writes over what its backward pass would need if LibTorch made it."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        return y.mul_(y).mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad


def frozen(make):
    model = nn.Sequential(nn.Linear(4, 4), make(), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    model[1].eval()
    return model


def image(layer):
    return nn.Sequential(nn.Conv2d(4, 4, 3), layer, nn.Flatten(), nn.Linear(64, 3))


def of_hidden(function):
    return Two(lambda m, x: m.second(function(m.first(x))))


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def by_batch(compare):
    return Two(lambda m, x: m.second(x) if compare(x.shape[0]) else -m.second(x))


class Takes(nn.Module):
    """An input as *args, in a list, in a dict, by keyword alone and as **kwargs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *rows, more, scale=None, by=2.0, **others):
        hidden = self.layer(rows[0] + rows[1]["a"][0] + more["b"] + sum(each for each in others.values()))
        return {"logits": hidden * by, "hidden": (hidden, [rows[0]])}


class Late(nn.Module):
    """A buffer that forward() registers in its first call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.arange(4.0), persistent=False)
        return self.layer(x * self.mask)


x, images = torch.randn(4, 4), torch.randn(4, 4, 6, 6)
cases = {
    "straight through": (of_own_backward(lambda g: g, torch.round), [3 * x], "backward() of Own"),
    "reversal": (of_own_backward(lambda g: -g), [x], "'first.weight'"),
    "gradient of zero": (of_own_backward(torch.zeros_like), [x], "backward() of Own"),
    "gradient that is clipped": (of_own_backward(lambda g: g.clamp(-1, 1)), [x], "backward() of Own"),
    "gradient that is normed": (of_own_backward(lambda g: g / (g.norm() + 1e-9)), [x], "backward() of Own"),
    "backward in place": (of_hidden(InPlace.apply), [x], "a step fails (one of the variables"),
    "derivative of its own": (of_hidden(Square.apply), [x], ""),
    "straight through by detach": (of_hidden(lambda h: h + (h.round() - h).detach()), [x], ""),
    "reversal by detach": (of_hidden(lambda h: 2 * h.detach() - h), [x], ""),
    "hook of a module": (hooked(lambda m: m[1].register_full_backward_hook(scaled(0.5))), [x], "the hooks of '1'"),
    "hook before": (hooked(lambda m: m[1].register_full_backward_pre_hook(lambda m, g: (2 * g[0],))), [x], "of '1'"),
    "hook that watches": (hooked(lambda m: m[1].register_full_backward_hook(lambda *_: None)), [x], ""),
    "hook of a parameter": (hooked(lambda m: m[0].weight.register_hook(lambda g: 2 * g)), [x], "of '0.weight'"),
    "hook that updates": (hooked(lambda m: m[0].bias.register_post_accumulate_grad_hook(update)), [x], "of '0.bias'"),
    "hook of a tensor": (Two(tensor_hook), [x], "hooks on tensors"),
    "hook of forward": (hooked(lambda m: m[1].register_forward_hook(lambda m, given, made: 2 * made)), [x], ""),
    "inference_mode": (without_gradient(torch.inference_mode), [x], "inference_mode"),
    "no_grad": (without_gradient(torch.no_grad), [x], ""),
    "detach": (of_hidden(lambda h: h + h.detach()), [x], ""),
    "no gradient": (Two(lambda m, x: m.second(x).detach()), [x], "No output has a gradient"),
    "a branch on one sample": (by_batch(lambda n: n == 1), [x], "for a batch of 1,"),
    "a branch that is a guard": (by_batch(lambda n: n <= 4), [x], ""),
    "draws of Python": (Two(lambda m, x: m.second(x) * (random.random() < 1e-3)), [x], "torch.rand()"),
    "draws of torch": (Two(lambda m, x: m.second(x) * torch.rand(x.shape[0], 1)), [x], ""),
    "draws in place": (Two(lambda m, x: m.second(x) * torch.empty(x.shape[0], 1).uniform_()), [x], ""),
    "draws that nobody uses": (Two(lambda m, x: (torch.rand(3), m.second(F.dropout(x)))[1]), [x], ""),
    "a buffer that counts": (Two(counted), [x], ""),
    "a number that counts": (Two(counted_in_python), [x], "keep what changes in buffers"),
    "frozen batch normalisation": (frozen(lambda: nn.BatchNorm1d(4)), [x], ""),
    "a frozen dropout": (frozen(lambda: nn.Dropout(0.5)), [x], ""),
    "all in evaluation mode": (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), [x], ""),
    "dropout": (of_hidden(F.dropout), [x], ""),
    "alpha_dropout": (of_hidden(lambda h: F.alpha_dropout(h, training=True)), [x], ""),
    "rrelu": (of_hidden(lambda h: F.rrelu(h, training=True)), [x], ""),
    "Dropout2d": (image(nn.Dropout2d()), [images], ""),
    "FeatureAlphaDropout": (image(nn.FeatureAlphaDropout()), [images], ""),
    "RReLU": (image(nn.RReLU()), [images], ""),
    "BatchNorm2d": (image(nn.BatchNorm2d(4)), [images], ""),
    "InstanceNorm2d": (image(nn.InstanceNorm2d(4, track_running_stats=True)), [images], ""),
    "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), [x], ""),
    "tied weights": (tied(), [x], ""),
    "checkpoint": (Two(lambda m, x: m.second(checkpoint(m.first, x, use_reentrant=False))), [x], ""),
    "float64": (nn.Linear(4, 3).double(), [x.double()], ""),
    "a loop over the samples": (Two(lambda m, x: torch.stack([m.second(row) for row in x])), [x], "dimension 0 of 'x' is"),
    "several kinds of arguments": (Takes(), ([x, {"a": [x + 1]}], {"more": {"b": x * 2}, "scale": None, "last": x + 3, "one": x}), ""),
    "a late buffer": (Late(), [x], ""),
    "bfloat16": (nn.Linear(4, 3).bfloat16(), [x.bfloat16()], ""),
}


def state_of(model):
    if isinstance(model, Late):
        model(x)
    modes = [part.training for part in model.modules()]
    tensors = export.tensors_of(model)
    numbers = {name: (tensor.tolist(), tensor.grad) for name, tensor in tensors.items()}
    return modes, numbers, torch.get_rng_state().tolist()


def main():
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, examples, wanted) in cases.items():
            file, before = pathlib.Path(folder, f"{name}.pt2"), state_of(model)
            try:
                args, kwargs = examples if isinstance(examples, tuple) else (examples, None)
                export.save(model, args, file, kwargs=kwargs)
                said = ""
            except SystemExit as error:
                said = str(error)
            is_right = wanted in said and bool(wanted) == bool(said) and file.exists() != bool(said)
            if is_right and state_of(model) == before:
                continue
            failed = True
            print(f"{name}: wanted {wanted!r}, {'not as it was; ' if is_right else ''}save() said {said!r}")
    sys.exit(failed)


main()
