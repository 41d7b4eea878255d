"""Records adam8bit.safetensors: numbers in 8 bits by blocks, and AdamW with such averages, of torchao on the CPU.

    python3 tests/oracles/adam8bit.py [--compare]

Needs torchao 0.18.0 besides (pip install --no-deps torchao==0.18.0). Without its torch.compile: eager.
"""

import torch
from oracle import Random, run
from torchao.optim import AdamW8bit
from torchao.optim.quant_utils import create_dynamic_map, quantize_8bit_with_qmap, scale_tensor

BLOCK = 256
RECORDED = (1, 10, 100)


def quantised(tensors, random):
    for signed in (True, False):
        name = "signed" if signed else "unsigned"
        numbers = torch.tensor(create_dynamic_map(signed))
        # Blocks of ordinary numbers, of many magnitudes, of zeros, with one outlier, and of all codes' own numbers.
        blocks = [random.normal((8 * BLOCK,), 3.0), random.normal((8 * BLOCK,)) * 10.0 ** random.uniform((8 * BLOCK,), 8.0)]
        blocks += [torch.zeros(BLOCK), torch.cat([random.normal((BLOCK - 1,), 1e-6), torch.tensor([7.0])]), numbers * 0.37]
        values = torch.cat(blocks)
        values = values if signed else values.abs()
        relative, scale = scale_tensor(values, BLOCK)
        tensors[f"{name}.map"] = numbers
        tensors[f"{name}.numbers"] = values
        tensors[f"{name}.codes"] = quantize_8bit_with_qmap(relative, numbers)
        tensors[f"{name}.absmax"] = scale


def trained(tensors, random):
    start, target = random.uniform((64, 96)), random.uniform((64, 96))
    tensors.update({"start": start.clone(), "target": target})
    torch.compiler.set_stance("force_eager")
    for name, optimizer_class in (("adamw8bit", AdamW8bit), ("adamw", torch.optim.AdamW)):
        parameter = torch.nn.Parameter(start.clone())
        optimizer = optimizer_class([parameter], lr=0.01, weight_decay=0.1)
        for step in range(1, 101):
            parameter.grad = (parameter.detach() - target) * (1.0 + 0.25 * ((step - 1) % 5))
            optimizer.step()
            if step not in RECORDED:
                continue
            tensors[f"{name}.{step}.parameter"] = parameter.detach().clone()
            if name == "adamw8bit" and step == 1:
                for average in ("exp_avg", "exp_avg_sq"):
                    kept = optimizer.state[parameter][average]
                    tensors[f"{name}.{step}.{average}"] = kept.codes.clone()
                    tensors[f"{name}.{step}.{average}_absmax"] = kept.scale.clone()


def record():
    random = Random(21)
    tensors = {}
    quantised(tensors, random)
    trained(tensors, random)
    return tensors


if __name__ == "__main__":
    run("adam8bit", record)
