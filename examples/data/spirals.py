"""Writes points on three spirals for configs/script.toml: a CSV file with the columns x, y and arm.

    python3 examples/data/spirals.py data/spirals.csv

A linear model tells them apart little better than by chance. The file is the same on every machine. Needs Python 3
alone.
"""

import math
import pathlib
import random
import sys

ARMS, POINTS = 3, 400


def main(path):
    draw = random.Random(1)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("x,y,arm\n")
        for number in range(ARMS * POINTS):
            arm, way = number % ARMS, draw.uniform(0.05, 1)
            angle = 2 * math.pi * (arm / ARMS + 0.8 * way) + draw.uniform(-0.25, 0.25)
            file.write(f"{way * math.cos(angle):.4f},{way * math.sin(angle):.4f},{arm}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: spirals.py FILE.csv")
    main(sys.argv[1])
