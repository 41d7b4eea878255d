"""What every oracle script shares: exact random numbers, the recorded file, the comparison with it.

    python3 tests/oracles/<name>.py              records <name>.safetensors again (the same bytes on the same machine)
    python3 tests/oracles/<name>.py --compare    computes everything again and prints how far it is from the file
    ... --add                                    records what the file lacks, and keeps the rest as it is
    ... --threads 2                              with two threads instead of one

Environment variables such as ATEN_CPU_CAPABILITY=avx2 show with --compare what another processor would give.
Needs torch 2.11.0, numpy and safetensors; the C++ tests need none of them, only the recorded files.
"""

import argparse
import os

import torch
from safetensors.torch import load_file, save

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = "2.11.0"


class Random:
    """Numbers that are the same on every processor: integers of the Mersenne twister, scaled with one rounding."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def integers(self, low, high, shape):
        """Uniform int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)

    def uniform(self, shape, bound=1.0):
        """Uniform float32 in [-bound, bound)."""
        return (self.integers(-(1 << 23), 1 << 23, shape).double() / (1 << 23) * bound).float()

    def normal(self, shape, std=1.0):
        """Nearly normal float32: the sum of twelve uniform numbers has mean 0 and variance 1."""
        total = sum(self.integers(-(1 << 23), 1 << 23, shape) for _ in range(12))
        return (total.double() / (1 << 24) * std).float()


def run(name, record, threads=1):
    """Command line of one oracle: `record` returns {tensor name: tensor}."""
    parser = argparse.ArgumentParser(prog=name + ".py")
    parser.add_argument("--compare", action="store_true", help="compare with the recorded file, write nothing")
    parser.add_argument("--add", action="store_true", help="record what the file lacks, and keep the rest")
    parser.add_argument("--threads", type=int, default=threads)
    arguments = parser.parse_args()
    if not torch.__version__.startswith(TORCH):
        parser.error(f"needs torch {TORCH}, this is {torch.__version__}")
    torch.set_num_threads(arguments.threads)
    tensors = {key: value.detach().contiguous() for key, value in record().items()}
    path = os.path.join(HERE, name + ".safetensors")
    if arguments.compare:
        compare(tensors, load_file(path))
        return
    if arguments.add:
        tensors.update({key: value.clone() for key, value in load_file(path).items()})  # not a view of the file
    with open(path, "wb") as file:
        file.write(save(tensors, {"recorded_with": "torch " + TORCH}))
    print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path)} bytes")


def distance(new, old):
    """(number of values whose bits differ, largest difference divided by the largest recorded magnitude)."""
    same = (new == old) | ((new != new) & (old != old))
    if bool(same.all()):
        return 0, 0.0
    a, b = new.double(), old.double()
    finite = a.isfinite() & b.isfinite()
    if bool((~same & ~finite).any()):
        return int((~same).sum()), float("inf")
    largest = b[finite].abs().max().clamp_min(1e-300)
    return int((~same).sum()), float((a - b)[finite].abs().max() / largest)


def compare(tensors, recorded):
    """One line a tensor that differs, then the sum."""
    if tensors.keys() != recorded.keys():
        raise SystemExit(f"other tensors: {sorted(tensors.keys() ^ recorded.keys())}")
    worst, differing = 0.0, 0
    for key in sorted(tensors):
        new, old = tensors[key], recorded[key]
        if new.dtype != old.dtype or new.shape != old.shape:
            raise SystemExit(f"{key}: {new.dtype} {tuple(new.shape)}, recorded {old.dtype} {tuple(old.shape)}")
        count, relative = distance(new, old)
        if count:
            differing += 1
            worst = max(worst, relative)
            print(f"  {key}: {count} of {old.numel()} differ, by at most {relative:.1e} of the largest")
    print(f"{len(tensors) - differing} of {len(tensors)} tensors equal, worst {worst:.1e}")
