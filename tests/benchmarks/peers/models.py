"""The models of peers.py: a network, its data and start weights, and the files from which all peers take them.

Every peer trains with AdamW, learning rate 3e-4 and PyTorch's other defaults, on the same batches in the same order.
The classes overlap, so that no peer comes to gradients of nothing.
"""
import dataclasses
import importlib.util
import math
import pathlib
from typing import Callable

import numpy
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[3]
BATCHES = 64  # of different data; then they come again
BYTES = 256


@dataclasses.dataclass
class Model:
    title: str
    batch_size: int
    network: Callable[[], nn.Module]
    data: Callable[[int], tuple]  # inputs and targets of so many samples
    task: str = "script"  # Vernier's
    sets: tuple = ()  # its options


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.head = nn.Linear(64 * 8 * 8, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def gpt(layers, width, context):
    """task/gpt's network: its own port to PyTorch, with GPT-2's start weights."""
    spec = importlib.util.spec_from_file_location("gpt_model", ROOT / "plugins/task/gpt/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Model(layers, heads=4, width=width, context=context, vocabulary=BYTES)
    for name, value in model.named_parameters():
        deviation = 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02
        if value.dim() == 2:
            nn.init.normal_(value, std=deviation)
        else:
            nn.init.constant_(value, float(name.endswith("weight")))  # norms are 1, biases 0
    return model


def classes(*shape):
    """Ten classes, each with a pattern of its own under noise."""

    def make(samples):
        patterns = torch.randn(10, *shape)
        labels = torch.randint(10, (samples,))
        strength = 3 / math.sqrt(math.prod(shape))  # so many deviations of the noise in all
        return torch.randn(samples, *shape) + strength * patterns[labels], labels

    return make


def text(context):
    """Windows of bytes that follow each other by a random rule: each byte has four successors."""

    def make(samples):
        successors = torch.randint(BYTES, (BYTES, 4)).tolist()
        choices = torch.randint(4, (samples * context,)).tolist()
        letters = [0]
        for choice in choices:
            letters.append(successors[letters[-1]][choice])
        letters = torch.tensor(letters)
        return letters[:-1].view(samples, context), letters[1:].view(samples, context)

    return make


def gpt_model(title, batch_size, layers, width, context):
    sets = (f"task.layers={layers}", f"task.width={width}", f"task.context={context}")
    return Model(title, batch_size, lambda: gpt(layers, width, context), text(context), "gpt", sets)


MODELS = {
    "mlp": Model("MLP, 784-512-512-10, batch 128", 128, mlp, classes(784)),
    "cnn": Model("CNN, two convolutions on 3x32x32, batch 64", 64, Cnn, classes(3, 32, 32)),
    "lstm": Model("LSTM, 128 wide, 64 steps of 32, batch 32", 32, Lstm, classes(64, 32)),
    "gpt_small": gpt_model("GPT, 2 layers of 128, 16 windows of 128", 16, 2, 128, 128),
    "gpt": gpt_model("GPT, 4 layers of 256, 8 windows of 256", 8, 4, 256, 256),
}


def write(name, folder):
    """Everything that the peers read: arrays, the text for task/gpt, weights, and the network as TorchScript."""
    folder.mkdir(parents=True)
    model = MODELS[name]
    torch.manual_seed(1)
    network = model.network()
    inputs, targets = model.data(BATCHES * model.batch_size)
    numpy.save(folder / "inputs.npy", inputs.numpy())
    numpy.save(folder / "targets.npy", targets.numpy())
    if model.task == "gpt":
        letters = torch.cat([inputs.flatten(), targets.flatten()[-1:]]).to(torch.uint8)
        (folder / "text.bin").write_bytes(letters.numpy().tobytes())
    save_file({key: value.clone() for key, value in network.state_dict().items()}, folder / "start.safetensors")
    traced = torch.jit.trace(network.train(), inputs[: model.batch_size], check_trace=False)
    traced.save(str(folder / "model.pt"))
    torch.save(network.state_dict(), folder / "start.pt")


def read(name, folder):
    """The network with its start weights, and its batches."""
    network = MODELS[name].network()
    network.load_state_dict(torch.load(folder / "start.pt"))
    arrays = [torch.from_numpy(numpy.load(folder / part)) for part in ("inputs.npy", "targets.npy")]
    return network.train(), list(zip(*(array.split(MODELS[name].batch_size) for array in arrays)))


def loss_of(output, target):
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())
