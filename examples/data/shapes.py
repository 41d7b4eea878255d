"""Writes images of circles, squares and triangles for configs/images.toml: PNG files in a folder for each class.

    python3 examples/data/shapes.py data/shapes

Makes train/ with 100 and validation/ with 30 images of each class, of 32 x 32 pixels in colour with noise. They are the
same on every machine. Needs Python 3 alone.
"""

import math
import os
import random
import struct
import sys
import zlib

SIZE = 32


def png(pixels):
    """The bytes of a PNG file of rows of (red, green, blue)."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in pixels)
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def is_inside(shape, x, y, radius):
    if shape == "circle":
        return math.hypot(x, y) < radius
    if shape == "square":
        return max(abs(x), abs(y)) < 0.85 * radius
    return -radius < 1.3 * y < radius and abs(x) < (1.3 * y + radius) / 2


def image(shape, draw):
    """One shape at a random place, in random colours."""
    radius = draw.uniform(7, 11)
    left, top = draw.uniform(radius, SIZE - radius), draw.uniform(radius, SIZE - radius)
    lows = (150, 20) if draw.random() < 0.5 else (20, 150)
    ink, paper = ([draw.uniform(low, low + 90) for _ in range(3)] for low in lows)

    def pixel(x, y):
        colour = ink if is_inside(shape, x - left, y - top, radius) else paper
        return [min(255, max(0, int(value + draw.uniform(-20, 20)))) for value in colour]

    return [[pixel(x, y) for x in range(SIZE)] for y in range(SIZE)]


def main(folder):
    draw = random.Random(1)
    for part, count in ("train", 100), ("validation", 30):
        for shape in "circle", "square", "triangle":
            os.makedirs(os.path.join(folder, part, shape), exist_ok=True)
            for number in range(count):
                with open(os.path.join(folder, part, shape, f"{number:03}.png"), "wb") as file:
                    file.write(png(image(shape, draw)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: shapes.py FOLDER")
    main(sys.argv[1])
