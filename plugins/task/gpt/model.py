"""The network of task/gpt in PyTorch, for weights that `vernier checkpoint export` wrote. Needs torch and safetensors.

    from model import load
    model = load("weights.safetensors", heads=4)    # as [task] heads of the run: the weights do not tell it
    logits = model(tokens)                          # [batch, time, vocabulary] of int64 [batch, time]
"""

from safetensors.torch import load_file
from torch import empty, nn
from torch.nn import functional as F


class Linear(nn.Module):
    """GPT-2's Conv1D: the weight is [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(empty(inputs, outputs))
        self.bias = nn.Parameter(empty(outputs))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Linear(width, 3 * width), "c_proj": Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": Linear(width, 4 * width), "c_proj": Linear(4 * width, width)})

    def forward(self, x):
        parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).flatten(2))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    """Without dropout. The head is the token embedding."""

    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def load(path, heads):
    """The model with the weights of a safetensors file. Every name and shape must fit."""
    weights = load_file(path)
    layers = sum(name.endswith(".ln_1.weight") for name in weights)
    (vocabulary, width), context = weights["wte.weight"].shape, len(weights["wpe.weight"])
    model = Model(layers, heads, width, context, vocabulary).to(weights["wte.weight"].dtype)
    model.load_state_dict(weights)
    return model
