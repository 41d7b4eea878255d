"""Writes clips of a moving square for configs/clips.toml: in a folder for each class, left, right, up and down.

    python3 examples/data/clips.py data/clips

Makes train/ with 100 and validation/ with 30 clips of each class, of 8 grey frames of 16 x 16 pixels with noise. Every
other clip is a folder of PNG files, the others are .npy files. A single frame says nothing of the direction. The clips
are the same on every machine. Needs Python 3 alone.
"""

import os
import random
import struct
import sys
import zlib

SIZE, FRAMES, SQUARE = 16, 8, 5
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def png(rows):
    """The bytes of a grey PNG file of rows of bytes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def npy(frames):
    """The bytes of a NumPy file, uint8 [frames, height, width]."""
    shape = (len(frames), len(frames[0]), len(frames[0][0]))
    header = str({"descr": "|u1", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + b"".join(b"".join(rows) for rows in frames)


def clip(step, draw):
    """Frames as rows of bytes. The square leaves one side and comes back on the other."""
    left, top = draw.randrange(SIZE), draw.randrange(SIZE)
    ink, paper = draw.choice([(170, 60), (60, 170)])

    def frame(number):
        x, y = left + number * step[0], top + number * step[1]
        inside = [[(i - x) % SIZE < SQUARE and (j - y) % SIZE < SQUARE for i in range(SIZE)] for j in range(SIZE)]
        return [bytes((ink if is_in else paper) + draw.randrange(-40, 41) for is_in in row) for row in inside]

    return [frame(number) for number in range(FRAMES)]


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def main(folder):
    draw = random.Random(1)
    for part, count in ("train", 100), ("validation", 30):
        for name, step in STEPS.items():
            for number in range(count):
                path, frames = os.path.join(folder, part, name, f"{number:03}"), clip(step, draw)
                if number % 2:
                    write(path + ".npy", npy(frames))
                    continue
                for i, rows in enumerate(frames):
                    write(os.path.join(path, f"{i}.png"), png(rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: clips.py FOLDER")
    main(sys.argv[1])
