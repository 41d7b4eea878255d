"""Exports a model for task/graph: a torch.nn.Module as a training program of torch.export. Needs torch 2.11.

    python3 plugins/task/graph/export.py data/spirals.pt2

For a model of your own, import save() from here. What Vernier needs of the model:

- forward() takes a tensor for each source in [task] inputs, dimension 0 the sample, and returns one tensor, a tuple or
  a dict of tensors; [task] output names the one that counts.
- With loss = "output", forward() takes the target as its last argument and returns the loss.
- torch.export follows one path through forward(). A branch on a tensor's numbers must be torch.cond.

Parameters and buffers keep their names. So `vernier export --format safetensors` gives a file for load_state_dict(),
and `vernier export --format pt2` one for torch.export.load(). Training starts with the weights of the file.
"""

import json
import pathlib
import sys

import torch
from torch import nn


def save(model, examples, path):
    """Writes a model with example tensors of any batch of two samples or more, and a description beside it.

    Every dimension 0 is dynamic. The gradients of one batch show that the file trains.
    """
    model.train()
    dynamic = tuple({0: torch.export.Dim.AUTO} for _ in examples)
    program = torch.export.export(model, tuple(examples), dynamic_shapes=dynamic)
    torch.export.save(program, path)

    output = torch.export.load(path).module()(*examples)
    tensors = [value for value in torch.utils._pytree.tree_leaves(output) if torch.is_tensor(value)]
    if not any(tensor.requires_grad for tensor in tensors):
        sys.exit(f"{path}: no output has a gradient, so the model cannot be trained")
    description = {
        "torch": torch.__version__,
        "inputs": [
            {
                "name": spec.arg.name,
                "dtype": str(example.dtype).removeprefix("torch."),
                "shape": ["samples", *example.shape[1:]],
            }
            for spec, example in zip(
                [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"], examples
            )
        ],
        "outputs": [list(tensor.shape) for tensor in tensors],
        "parameters": [name for name, _ in model.named_parameters()],
    }
    pathlib.Path(path).with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n")


class Model(nn.Module):
    """Three classes of points in a plane: logits [samples, 3] of float32 [samples, 2]."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.05), nn.Linear(width, 3)
        )

    def forward(self, points):
        return self.layers(points)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: export.py FILE.pt2")
    torch.manual_seed(1)
    save(Model(), [torch.randn(4, 2)], sys.argv[1])
