"""Writes models that two ranks hold together, <name>-<rank>.pt2, and what one process computes with the same models in
one piece: whole.safetensors and losses.json. Needs torch 2.11.

    python3 tests/distributed/graphs/record.py [FOLDER]

Each model trains 50 steps on batches of 8 of 24 samples, in order, on one thread. model_parallel_test.cpp trains its
parts on two ranks with the same data. Inputs are numbers of a formula, so that both sides have the same.
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

here = pathlib.Path(__file__).resolve().parent
sys.path.append(str(here.parents[2] / "plugins/task/graph"))
import export  # noqa: E402

ranks, steps, samples, batch = 2, 50, 24, 8


def numbers(shape, salt):
    """Numbers from -1 to 1 that any language can repeat: exact in float32."""
    count = int(torch.tensor(shape).prod())
    values = [((i * 7919 + salt * 104729) % 2003 - 1001) / 1024 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def summed(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD) if parted else x


def gathered(x):
    """The rows of all ranks, from the second dimension on."""
    return funcol.all_gather_tensor(x, 1, dist.group.WORLD) if parted else x


def scattered(x):
    return funcol.reduce_scatter_tensor(x, "sum", 1, dist.group.WORLD) if parted else x


def own_rows(x):
    return x.chunk(ranks, 1)[dist.get_rank()] if parted else x


class TensorParallel(nn.Module):
    """A layer whose outputs are in parts, and one whose inputs are. Its bias is on all ranks, as the layers around."""

    def __init__(self, parts):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.up = nn.Linear(8, 16 // parts)
        self.down = nn.Linear(16 // parts, 8, bias=False)
        self.bias = nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(summed(self.down(F.gelu(self.up(x)))) + self.bias)

    sharded = {"up.weight": 0, "up.bias": 0, "down.weight": 1}


class SequenceParallel(nn.Module):
    """Norms of a part of the places, which sees all weights; products of all places, in parts."""

    def __init__(self, parts):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 16 // parts)
        self.down = nn.Linear(16 // parts, 6, bias=False)
        self.last = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = own_rows(x)
        x = x + scattered(self.down(F.silu(self.up(gathered(self.norm(x))))))
        return self.head(gathered(self.last(x)).mean(1))

    sharded = {"up.weight": 0, "up.bias": 0, "down.weight": 1}


class Block(nn.Module):
    """A transformer block with its heads in parts."""

    def __init__(self, parts):
        super().__init__()
        self.heads = 4 // parts
        self.norm, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.query, self.value = nn.Linear(8, 8 // parts), nn.Linear(8, 8 // parts)
        self.key = nn.Linear(8, 8 // parts, bias=False)  # its gradient would be rounding alone
        self.out = nn.Linear(8 // parts, 8, bias=False)
        self.up, self.down = nn.Linear(8, 16 // parts), nn.Linear(16 // parts, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, 2)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + summed(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        x = x + summed(self.down(F.gelu(self.up(self.norm2(x)))))
        return self.head(x.mean(1))

    sharded = {f"{name}.{kind}": 0 for name in ("query", "value", "up") for kind in ("weight", "bias")}
    sharded |= {"key.weight": 0, "out.weight": 1, "down.weight": 1}


kinds = {"mlp": (TensorParallel, [6]), "sequence": (SequenceParallel, [4, 6]), "block": (Block, [4, 8])}


class Reduced(nn.Module):
    """What is refused: a reduction without a gradient, and weights that differ and are not named as sharded."""

    def __init__(self, op):
        super().__init__()
        self.layer, self.op = nn.Linear(6, 3), op

    def forward(self, x):
        return funcol.all_reduce(self.layer(x), self.op, dist.group.WORLD)


def part_of(tensor, dim, rank):
    return tensor.detach().chunk(ranks, dim)[rank].clone()


def save(model, shape, folder, name, rank, sharded):
    path, example = pathlib.Path(folder, f"{name}-{rank}.pt2"), numbers([4, *shape], 9)
    if name == "mlp":
        export.save(model, [example], path, sharded=sharded)
        return path.with_suffix(".json").unlink()
    program = export.exported(model, ((example,), {}), None, path)  # a smaller file, without a program of evaluation
    parts = {"rank": rank, "ranks": ranks, "sharded": sharded}
    torch.export.save(program, path, extra_files={"parts.json": json.dumps(parts)})


def write(rank, folder, wholes):
    """Writes the parts of a rank, in a process of its own."""
    global parted
    parted = True
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for name, (kind, shape) in kinds.items():
        model = kind(ranks)
        parts = {key: part_of(value, kind.sharded[key], rank) if key in kind.sharded else value
                 for key, value in wholes[name].items()}
        model.load_state_dict(parts)
        save(model, shape, folder, name, rank, list(kind.sharded))
    for name, op in (("max", "max"), ("unnamed", "sum")):
        torch.manual_seed(rank)
        save(Reduced(op), [6], folder, name, rank, [])
    dist.barrier()
    dist.destroy_process_group()


def train(model, shape, optimizer, most_norm):
    x, y = numbers([samples, *shape], 1), torch.arange(samples) * 5 % 3
    losses, norms = [], []
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % samples
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), most_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms, "validation": F.cross_entropy(model(x), y).item()}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else here).resolve()
    torch.set_num_threads(1)
    parted, wholes, recorded, weights = False, {}, {}, {}
    for salt, (name, (kind, shape)) in enumerate(kinds.items()):
        torch.manual_seed(salt)
        wholes[name] = {key: value.clone() for key, value in kind(1).state_dict().items()}
        for rule, make, most in (
            ("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 1e9),
            ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), 0.3),
        ):
            model = kind(1)
            model.load_state_dict(wholes[name])
            recorded[f"{name}/{rule}"] = train(model, shape, make(model.parameters()), most)
            for key, value in model.state_dict().items():
                weights[f"{name}/{rule}/{key}"] = value
    (folder / "losses.json").write_text(json.dumps(recorded) + "\n")
    save_file(weights, folder / "whole.safetensors")
    torch.multiprocessing.spawn(write, (str(folder), wholes), ranks)
    (folder / "store").unlink(missing_ok=True)
