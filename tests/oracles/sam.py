"""Records sam.safetensors: sharpness-aware minimisation in a few lines of PyTorch, torch 2.11.0.

    python3 tests/oracles/sam.py [--compare]

The rule of Foret et al. (2021) and of ASAM (Kwon et al. 2021), as in the authors' common implementation in PyTorch
(github.com/davda54/sam), around plain gradient descent, in float32. The network and its batches are those of
tests/support/toy_run.h. README.md says the rest.
"""

import torch
from oracle import run
from torch.nn import functional as f

RATE, STEPS = 0.1, 6
CASES = {"sam": (0.05, False), "asam": (0.5, True)}


def batch(number):
    x = (torch.arange(18, dtype=torch.float32).reshape(6, 3) + number).sin()
    return x, x[:, :2].cos()


def loss_of(first, second, number):
    x, y = batch(number % 3)
    return f.mse_loss(f.linear(torch.tanh(f.linear(x, first)), second), y)


def train(rho, adaptive):
    first = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    second = torch.linspace(1, -1, 8).reshape(2, 4).requires_grad_()
    weights = [first, second]
    losses, perturbed = [], []
    for number in range(STEPS):
        loss = loss_of(first, second, number)
        gradients = torch.autograd.grad(loss, weights)
        before = [w.detach().clone() for w in weights]
        with torch.no_grad():
            scaled = [w.abs() * g if adaptive else g for w, g in zip(weights, gradients)]
            scale = rho / (torch.stack([s.norm() for s in scaled]).norm() + 1e-12)
            for w, g in zip(weights, gradients):
                w.add_((w.square() if adaptive else 1.0) * g * scale)
        nearby = loss_of(first, second, number)
        gradients = torch.autograd.grad(nearby, weights)
        with torch.no_grad():
            for w, b, g in zip(weights, before, gradients):
                w.copy_(b).sub_(g, alpha=RATE)
        losses.append(loss.detach())
        perturbed.append(nearby.detach())
    return {"first": first, "second": second, "loss": torch.stack(losses), "perturbed_loss": torch.stack(perturbed)}


def record():
    return {f"{name}.{key}": value for name, case in CASES.items() for key, value in train(*case).items()}


if __name__ == "__main__":
    run("sam", record)
