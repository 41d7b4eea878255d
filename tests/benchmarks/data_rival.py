#!/usr/bin/env python3
"""PyTorch's DataLoader with two workers, for tests/benchmarks/data.cpp, which starts this and tells it how often.

    python3 data_rival.py FOLDER

Reads FOLDER/images.npy (uint8 [512, 3, 256, 256]) and labels.npy (int64 [512]), whose headers have 128 bytes. Prints
"loader", then "ready"; for each line `loader TIMES`, takes so many batches and prints "done". Needs torch 2.11.0.
"""
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

HEADER, IMAGES, SIDE, CUT = 128, 512, 256, 224


def mapped(path, shape, dtype):
    whole = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)
    return whole[HEADER:].view(dtype).view(shape)


class Images(Dataset):
    def __init__(self, folder):
        self.images = mapped(f"{folder}/images.npy", (IMAGES, 3, SIDE, SIDE), torch.uint8)
        self.labels = mapped(f"{folder}/labels.npy", (IMAGES,), torch.int64)
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        self.deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        top, left = torch.randint(SIDE - CUT + 1, (2,)).tolist()
        image = self.images[index, :, top : top + CUT, left : left + CUT]
        if torch.rand(()).item() < 0.5:
            image = image.flip(2)
        return image.float().div_(255).sub_(self.mean).div_(self.deviation), self.labels[index]


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(1)
    loader = DataLoader(Images(sys.argv[1]), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    batches = endless(loader)
    print("loader\nready", flush=True)
    for line in sys.stdin:
        for _ in range(int(line.split()[1])):
            next(batches)
        print("done", flush=True)


if __name__ == "__main__" and torch.__version__.startswith("2.11."):
    main()
