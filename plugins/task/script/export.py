"""Exports a model for task/script: a torch.nn.Module as TorchScript. Needs torch.

    python3 plugins/task/script/export.py data/spirals.pt

Replace the class by a model of your own. What Vernier needs of it:

- forward() takes a tensor for each source in [task] inputs, dimension 0 the sample, and returns one tensor.
- With loss = "output", forward() takes the target as its last argument and returns the loss.
- torch.jit.script() keeps branches such as `if self.training`, and so dropout. Where it refuses a model,
  torch.jit.trace(model.train(), examples) exports the operators of one call. Do not freeze the module: that removes its
  parameters.
- Parameters and buffers keep their names. So `vernier export --format safetensors` gives a file for load_state_dict(),
  and `vernier export --format torchscript` one for torch.jit.load().
- Training starts with the weights of the file. What forward() changes is in a buffer: self.register_buffer().
"""

import sys

import torch
from torch import nn


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
        sys.exit("usage: export.py FILE.pt")
    torch.manual_seed(1)
    torch.jit.script(Model()).save(sys.argv[1])
