"""What torch.utils.flop_counter counts, for callback/mfu.

For each case the tensor `<case>` float64 [2]: the operations of forward, and those of backward. `gpt` is task/gpt of
two layers of width 16 with 2 heads, vocabulary 256 and context 16, on 4 windows; `mlp` is task/mlp of 6-5-3 on 12
samples.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import oracle


def counted(function):
    with FlopCounterMode(display=False) as forward:
        result = function()
        result = result[0] if isinstance(result, tuple) else result
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    return torch.tensor([forward.get_total_flops(), backward.get_total_flops()], dtype=torch.float64)


def ones(*shape, grad=True):
    return torch.ones(shape, requires_grad=grad)


def gpt():
    torch.manual_seed(1)
    layers, width, heads, vocabulary, context, windows = 2, 16, 2, 256, 16, 4
    table, places = ones(vocabulary, width), ones(context, width)

    def block(x):
        qkv = F.linear(F.layer_norm(x, (width,)), ones(3 * width, width))
        q, k, v = (part.view(windows, context, heads, -1).transpose(1, 2) for part in qkv.split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(windows, context, width)
        x = x + F.linear(y, ones(width, width))
        return x + F.linear(F.gelu(F.linear(x, ones(4 * width, width))), ones(width, 4 * width))

    def run():
        x = F.embedding(torch.zeros(windows, context, dtype=torch.long), table) + places
        for _ in range(layers):
            x = block(x)
        return F.linear(x, table)

    return run


def mlp():
    x = ones(12, 6, grad=False)
    return F.linear(torch.relu(F.linear(x, ones(5, 6), ones(5))), ones(3, 5), ones(3))


def record():
    lstm = torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True)
    gru = torch.nn.GRU(4, 3, batch_first=True)
    cell = torch.nn.GRUCell(4, 3)
    cases = {
        "linear": lambda: F.linear(ones(3, 5, 7), ones(11, 7), ones(11)),
        "linear_first": lambda: F.linear(ones(3, 5, 7, grad=False), ones(11, 7), ones(11)),
        "linear_frozen": lambda: F.linear(ones(3, 5, 7), ones(11, 7, grad=False)),
        "mm": lambda: torch.mm(ones(3, 4), ones(4, 5)),
        "bmm": lambda: torch.bmm(ones(2, 3, 4), ones(2, 4, 5)),
        "addmm": lambda: torch.addmm(ones(5), ones(3, 4), ones(4, 5)),
        "baddbmm": lambda: torch.baddbmm(ones(2, 3, 5), ones(2, 3, 4), ones(2, 4, 5)),
        "matmul": lambda: torch.matmul(ones(2, 3, 4, 5), ones(5, 6)),
        "matmul_broadcast": lambda: torch.matmul(ones(2, 1, 4, 5), ones(3, 5, 6)),
        "conv1d": lambda: F.conv1d(ones(2, 3, 9), ones(5, 3, 3), stride=2),
        "conv2d": lambda: F.conv2d(ones(2, 3, 8, 9), ones(5, 3, 3, 2), ones(5), stride=2, padding=1),
        "conv2d_first": lambda: F.conv2d(ones(2, 3, 8, 9, grad=False), ones(5, 3, 3, 2)),
        "conv3d": lambda: F.conv3d(ones(2, 3, 4, 5, 6), ones(2, 3, 2, 3, 2)),
        "conv_transpose2d": lambda: F.conv_transpose2d(ones(2, 3, 4, 5), ones(3, 6, 3, 2), stride=2),
        # PyTorch counts the gradient of a grouped weight as often as there are groups, so only forward is compared.
        "conv2d_grouped": lambda: F.conv2d(ones(2, 6, 8, 9), ones(4, 3, 3, 2), groups=2),
        "attention": lambda: F.scaled_dot_product_attention(ones(2, 3, 7, 4), ones(2, 3, 9, 4), ones(2, 3, 9, 4)),
        "attention_frozen_key": lambda: F.scaled_dot_product_attention(
            ones(2, 3, 7, 4), ones(2, 3, 9, 4, grad=False), ones(2, 3, 9, 4, grad=False)),
        "einsum": lambda: torch.einsum("bqhd,bkhd->bhqk", ones(2, 5, 3, 4), ones(2, 6, 3, 4)),
        "einsum_implicit": lambda: torch.einsum("...ij, jk", ones(2, 3, 4), ones(4, 5)),
        "einsum_summed": lambda: torch.einsum("ijm,jk->ik", ones(3, 4, 2), ones(4, 5)),
        "einsum_no_product": lambda: torch.einsum("i,j->ij", ones(3), ones(4)),
        "lstm": lambda: lstm(ones(5, 2, 4), (ones(4, 2, 3), ones(4, 2, 3))),
        "gru": lambda: gru(ones(2, 5, 4), ones(1, 2, 3)),
        "gru_cell": lambda: cell(ones(2, 4), ones(2, 3)),
        "mlp": mlp,
        "gpt": gpt(),
    }
    # The work of oneDNN and of the fused attention is not counted, or counted with what is computed again.
    with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        return {name: counted(function) for name, function in cases.items()}


if __name__ == "__main__":
    oracle.run("flops", record)
