"""Writes two series for configs/sequence.toml: a CSV file with a row for each hour, oldest first.

    python3 examples/data/waves.py data/waves.csv

The temperature is a sum of a daily, a weekly and a slow wave. The load follows it with a delay. Both have noise. The
file is the same on every machine. Needs Python 3 alone.
"""

import math
import pathlib
import random
import sys

HOURS = 2000
DAY, WEEK, SLOW, DELAY = 24, 168, 611, 5


def wave(hour):
    return (
        8 * math.sin(2 * math.pi * hour / DAY)
        + 3 * math.sin(2 * math.pi * hour / WEEK + 1)
        + 2 * math.sin(2 * math.pi * hour / SLOW)
    )


def main(path):
    draw = random.Random(1)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("temperature,load\n")
        for hour in range(HOURS):
            temperature = 12 + wave(hour) + draw.uniform(-1, 1)
            load = 400 - 15 * wave(hour - DELAY) + draw.uniform(-15, 15)
            file.write(f"{temperature:.2f},{load:.1f}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: waves.py FILE.csv")
    main(sys.argv[1])
