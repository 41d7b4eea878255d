"""Writes the graphs of this folder, and what PyTorch computes with them: <name>.pt2 and losses.json. Needs torch 2.11.

    python3 tests/plugins/task/graphs/record.py [FOLDER [MODEL...]]

Each model trains 20 steps of plain gradient descent in Python's eager mode, with batches of 3 to 9 samples, in float32
and in bfloat16 autocast, on one thread; then it is evaluated. graph_test.cpp does the same with the graphs, and must
get these losses: to rounding, and bit for bit where this script runs on the same processor. Inputs and targets are numbers of a formula, so that both sides have the same.
"""

import copy
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
folder = folder if folder.is_dir() else folder.parent
sys.path.append(str(pathlib.Path(__file__).resolve().parents[4] / "plugins/task/graph"))
import export  # noqa: E402

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)
steps, rate = 20, 0.05


def numbers(shape, salt):
    """Numbers from -1 to 1 that any language can repeat: exact in float32."""
    count = int(torch.tensor(shape).prod())
    values = [((i * 7919 + salt * 104729) % 2003 - 1001) / 1024 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def codes(shape, below, salt):
    count = int(torch.tensor(shape).prod())
    return torch.tensor([(i * 31 + salt * 17) % below for i in range(count)]).reshape(shape)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.25), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x + 1)


class Plane(nn.Module):
    """Two classes of points in a plane."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.free = nn.BatchNorm2d(4, track_running_stats=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu_(self.norm(self.conv(x))), 2)
        return self.head(F.adaptive_avg_pool2d(self.free(x), 1).flatten(1))


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[1][0][-1])


class Gpt(nn.Module):
    """Tied embedding and head, rotary-free attention, layer norms."""

    def __init__(self, words=11, width=8):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(1, 6, width))
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return self.head(x).mean(1)


class Llama(nn.Module):
    """Root mean square norm, gated linear unit, rotary embedding with grouped heads."""

    def __init__(self, width=8):
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 12, bias=False), nn.Linear(width, 12, bias=False)
        self.down = nn.Linear(12, 3, bias=False)
        angle = torch.outer(torch.arange(6).float(), 100.0 ** -(torch.arange(0, 4, 2).float() / 4))
        self.register_buffer("cos", torch.cat([angle, angle], 1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angle, angle], 1).sin(), persistent=False)

    def turned(self, x):
        half = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * self.cos + half * self.sin

    def forward(self, tokens):
        x = self.words(tokens)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        batch, length, _ = x.shape
        q = self.turned(self.q(x).view(batch, length, 2, 4).transpose(1, 2))
        k, v = self.kv(x).view(batch, length, 2, 4).transpose(1, 2).split(1, 1)
        y = F.scaled_dot_product_attention(q, self.turned(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        x = x + y.transpose(1, 2).reshape(batch, length, -1)
        return self.down(F.silu(self.gate(x)) * self.up(x))[:, -1]


class Two(nn.Module):
    """Two inputs, a dict of outputs, a bag of embeddings, and a buffer that counts calls in evaluation as well."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 4)
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, words):
        self.calls.add_(1)
        features = torch.cat([x, self.bag(words)], 1)
        return {"features": features, "logits": self.head(features).div(1 + 0.01 * self.calls)}


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        low = F.leaky_relu(self.norm(self.down(x)), 0.1)
        high = F.interpolate(self.up(low), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([x, high], 1)).mean((2, 3))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Branch(nn.Module):
    """A branch on numbers, and a part without gradients."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            shift = x.mean() * 0.5
        return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x).tanh(), [x]) + shift


class Window(nn.Module):
    """Evaluation without the random part, heads that share keys, a mask written in pieces, and an index of two tensors."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))
        self.register_buffer("rows", torch.tensor([[0, 1, 2, 3]] * 4), persistent=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        batch, length, _ = x.shape
        part = x.new_zeros(length)
        part[: length // 2] = 1
        part[length // 2 :] = 3
        bias = self.table[self.rows, self.rows.T] + part[:, None] - part
        q = self.q(x).view(batch, length, 4, 2).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        y = y.transpose(1, 2).reshape(batch, length, 8)
        if self.training:  # stochastic depth
            y = y * torch.empty([batch, 1, 1]).bernoulli_(0.5).div_(0.5)
        return self.head(F.hardsigmoid(x + torch.roll(y, 1, 1))).mean(1)


class Functional(nn.Module):
    """Functions that are random, and normalise by the batch, in evaluation too; and the operators & | ^ and &=."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x):
        x = F.batch_norm(self.first(x), self.mean, self.variance, training=True)
        x = F.alpha_dropout(F.dropout(x, 0.2), 0.1, training=True)
        x = F.feature_alpha_dropout(F.dropout1d(x[..., None], 0.1), 0.1, training=True)[..., 0]
        low = (x < 0) ^ (x < -2) | (x > 1) & (x < 2)
        low &= x < 1.5
        x = F.rrelu(torch.where(low, 1.02 * x, x), training=True)[:, None]
        return self.head(F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)[:, 0])


class Frozen(nn.Module):
    """A batch normalisation that stays in evaluation mode beside layers that have two modes."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)
        self.frozen, self.norm = nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True, momentum=0.3)
        self.drop = nn.Dropout2d(0.2)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = F.silu(self.norm(self.frozen(self.conv(x))))
        return self.head(self.drop(x).mean((2, 3)))


class Loops(nn.Module):
    """Loops of torch: one by a condition, one that hands values on, and one for each row. The losses are those of plain
    loops, because the gradients of torch.while_loop in PyTorch 2.11 are not those of the loop."""

    is_exported = True

    def __init__(self):
        super().__init__()
        self.first, self.step, self.each, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        rows = x.transpose(0, 1).contiguous()

        def deeper(count, hidden):
            return count + 1, torch.tanh(self.first(hidden))

        def handed_on(hidden, row):
            hidden = torch.tanh(self.step(hidden) + row)
            return hidden, hidden * 2

        def of_row(row, start):
            return self.each(row) + start

        count, start = torch.tensor(0), x[:, 0].clone()
        if self.is_exported:
            _, hidden = while_loop(lambda count, hidden: count < 3, deeper, (count, start))
            last, all = scan(handed_on, start, rows)
            return self.head(hidden + last + all.sum(0) + map_rows(of_row, rows, start).sum(0))
        hidden = start
        while count < 3:
            count, hidden = deeper(count, hidden)
        last, all = start, []
        for row in rows:
            last, made = handed_on(last, row)
            all.append(made)
        return self.head(hidden + last + torch.stack(all).sum(0) + torch.stack([of_row(row, start) for row in rows]).sum(0))


class Checked(nn.Module):
    """Operators whose numbers task/graph checks before it calls them: no part of a file that it writes."""

    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(7, 4), nn.Linear(4, 3)

    def forward(self, x):
        places = torch.div((x[:, 0, 0] * 20).long() + 20, 3, rounding_mode="trunc").clamp(0, 6)
        seen = F.grid_sample(x, x.permute(0, 2, 3, 1).tanh(), align_corners=False)
        return self.out(self.bag(places)) + seen.mean((1, 2, 3)).unsqueeze(1)


models = {
    "mlp": (Mlp, lambda n, s: [numbers([n, 4], s)]),
    "plane": (Plane, lambda n, s: [numbers([n, 2], s)]),
    "cnn": (Cnn, lambda n, s: [numbers([n, 2, 6, 6], s)]),
    "gru": (Gru, lambda n, s: [numbers([n, 4, 3], s)]),
    "lstm": (Lstm, lambda n, s: [numbers([n, 4, 3], s)]),
    "gpt": (Gpt, lambda n, s: [codes([n, 6], 11, s)]),
    "llama": (Llama, lambda n, s: [codes([n, 6], 11, s)]),
    "two": (Two, lambda n, s: [numbers([n, 2], s), codes([n, 3], 7, s)]),
    "unet": (Unet, lambda n, s: [numbers([n, 2, 6, 6], s)]),
    "encoder": (Encoder, lambda n, s: [numbers([n, 5, 8], s)]),
    "window": (Window, lambda n, s: [numbers([n, 4, 8], s)]),
    "branch": (Branch, lambda n, s: [numbers([n, 4], s)]),
    "functional": (Functional, lambda n, s: [numbers([n, 4], s)]),
    "loops": (Loops, lambda n, s: [numbers([n, 5, 4], s)]),
    "checked": (Checked, lambda n, s: [numbers([n, 2, 6, 6], s)]),
    "frozen": (Frozen, lambda n, s: [numbers([n, 2, 6, 6], s)]),
}


class OwnLoss(nn.Module):
    """Returns its loss: how well few numbers hold many."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4))

    def forward(self, x):
        return (self.layers(x) - x).square().mean()


class Modes(nn.Module):
    """Every layer of torch.nn that computes otherwise in evaluation, and those that do not though they look alike."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.InstanceNorm1d(4), nn.BatchNorm1d(4),
            nn.BatchNorm1d(4, track_running_stats=False), nn.Dropout(0.2), nn.AlphaDropout(0.1), nn.Dropout1d(0.1),
            nn.FeatureAlphaDropout(0.1), nn.RReLU())  # fmt: skip
        self.gru = nn.GRU(5, 5, num_layers=2, dropout=0.3, batch_first=True)
        self.lstm = nn.LSTM(5, 5, num_layers=2, dropout=0.3, batch_first=True)
        self.rnn = nn.RNN(5, 5, num_layers=2, dropout=0.3, batch_first=True)
        self.attention = nn.MultiheadAttention(5, 1, dropout=0.3, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        x = self.layers(x)
        for layer in (self.gru, self.lstm, self.rnn):
            x = layer(x)[0]
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


@torch.library.custom_op("mine::swish", mutates_args=())
def swish(x: torch.Tensor, scale: float) -> torch.Tensor:
    """An operator that LibTorch has not: tests/fixtures/own_operators.cpp has it for C++."""
    return x * torch.sigmoid(scale * x)


swish.register_fake(lambda x, scale: torch.empty_like(x))
swish.register_autograd(
    lambda ctx, gradient: (gradient * derivative(ctx.x, ctx.scale), None),
    setup_context=lambda ctx, inputs, output: ctx.__dict__.update(x=inputs[0], scale=inputs[1]))


def derivative(x, scale):
    s = torch.sigmoid(scale * x)
    return s + scale * x * s * (1 - s)


class OwnOperator(nn.Module):
    """A network that calls an operator of its author's, or the same of LibTorch's operators."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(2, 8), nn.Linear(8, 1), function

    def forward(self, x):
        return self.last(self.function(self.first(x), 1.5))[:, 0]


def logits_of(model, inputs):
    output = model(*inputs)
    return output["logits"] if isinstance(output, dict) else output


def trained(model, make, is_bfloat16):
    """Returns the losses as hexadecimal text, of 20 steps and of an evaluation."""
    losses = []
    torch.manual_seed(7)
    for step in range(steps):
        samples = 3 + step % 7
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16):
            loss = F.cross_entropy(logits_of(model, make(samples, step)), codes([samples], 3, step))
        losses.append(loss.item().hex())
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-rate)
                    parameter.grad = None
    model.eval()
    with torch.no_grad():
        losses.append(logits_of(model, make(4, 99)).double().sum().item().hex())
    return losses


def main():
    names = sys.argv[2:] or models
    file = folder / "losses.json"
    losses = json.loads(file.read_text()) if sys.argv[2:] else {}
    for name in names:
        kind, make = models[name]
        torch.manual_seed(1)
        model = kind().train()
        export.write(copy.deepcopy(model), make(4, 1), folder / f"{name}.pt2")
        model.is_exported = False
        losses[name] = {}
        for dtype in ("float32", "bfloat16"):
            losses[name][dtype] = trained(copy.deepcopy(model), make, dtype == "bfloat16")
    file.write_text(json.dumps(losses, indent=1) + "\n")
    torch.manual_seed(1)
    export.write(OwnLoss().train(), [numbers([4, 4], 1)], folder / "own_loss.pt2")
    modes = Modes().train()
    modes.layers(numbers([6, 4, 5], 2))  # moves the running statistics
    export.write(modes, [numbers([4, 4, 5], 1)], folder / "modes.pt2")
    for name, function in (("own_operator", swish), ("plain_operators", lambda x, scale: x * (scale * x).sigmoid())):
        torch.manual_seed(1)
        export.write(OwnOperator(function).train(), [numbers([4, 2], 1)], folder / f"{name}.pt2")


main()
