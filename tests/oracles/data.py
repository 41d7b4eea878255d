"""Writes tests/oracles/data: files of NumPy, Pillow and Python's csv, and what they hold.

pip install numpy==2.4.6 pillow==13.0.0
"""
import csv
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

folder = pathlib.Path(__file__).parent / "data"
random = np.random.default_rng(18)


def arrays():
    """Element (i, j, ...) is 7 * (i + j + ...) + 5, or for a bool whether 7 * (i + j + ...) is even."""
    def counting(shape, dtype):
        values = sum(7 * np.indices(shape), start=np.zeros(shape)) if shape else np.zeros(())
        return (values % 2 == 0 if dtype == "?" else values + 5).astype(dtype)

    for name, dtype in {"bool": "?", "int8": "i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "u1",
                        "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "float16": "<f2", "float32": "<f4",
                        "float64": "<f8"}.items():
        np.save(folder / f"{name}.npy", counting((3, 4), dtype))
    np.save(folder / "fortran.npy", np.asfortranarray(counting((3, 4, 2), "<f4")))
    np.save(folder / "scalar.npy", counting((), "<f8"))
    np.save(folder / "empty.npy", counting((0, 3), "<f4"))
    np.save(folder / "big_endian.npy", counting((3, 4), ">f4"))
    np.save(folder / "records.npy", np.zeros(3, dtype=[("a", "<f4"), ("b", "<i8")]))
    np.save(folder / "texts.npy", np.array(["a", "bc"]))
    for version in (1, 2, 3):
        with open(folder / f"version_{version}.npy", "wb") as file:
            np.lib.format.write_array(file, counting((3, 4), "<f4"), version=(version, 0))
    both = {"x": counting((5, 2), "<f4"), "y": counting((5,), "<i8")}
    np.savez(folder / "stored.npz", **both)
    np.savez_compressed(folder / "deflated.npz", **both)


def interlaced_png(pixels):
    """Pillow does not write Adam7, so this follows the PNG specification (ISO/IEC 15948, 8.2)."""
    height, width, _ = pixels.shape
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b"".join(b"\0" + row.tobytes() for top, left, down, right in passes
                    for row in pixels[top::down, left::right] if row.size)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def images():
    """Each image, with what Pillow decodes: NAME.png or NAME.jpg, NAME.rgb.npy and NAME.grey.npy."""
    y, x = np.mgrid[0:11, 0:17]
    smooth = np.stack([x * 15, y * 23, (x + y) * 9], axis=2).astype("u1")
    noise = random.integers(0, 256, smooth.shape, dtype="u1")
    colour = Image.fromarray(noise)
    alpha = random.integers(0, 256, (11, 17, 4), dtype="u1")
    made = {
        "rgb.png": colour, "grey.png": colour.convert("L"), "palette.png": colour.quantize(16),
        "rgba.png": Image.fromarray(alpha), "grey_alpha.png": Image.fromarray(alpha).convert("LA"),
        "bits.png": colour.convert("1"), "smooth.jpg": Image.fromarray(smooth),
        "grey.jpg": Image.fromarray(smooth).convert("L"), "progressive.jpg": Image.fromarray(smooth),
        "cmyk.jpg": Image.fromarray(smooth).convert("CMYK"),
    }
    for name, image in made.items():
        image.save(folder / name, **({"progressive": True} if name.startswith("progressive") else {}))
    (folder / "interlaced.png").write_bytes(interlaced_png(noise))
    wide = random.integers(0, 65536, (11, 17), dtype="<u2")
    Image.fromarray(wide).save(folder / "sixteen.png")
    for path in sorted([*folder.glob("*.png"), *folder.glob("*.jpg")]):
        if path.name in ("cmyk.jpg", "sixteen.png"):
            continue
        with Image.open(path) as image:
            np.save(path.with_suffix(path.suffix + ".rgb.npy"), np.asarray(image.convert("RGB")))
            np.save(path.with_suffix(path.suffix + ".grey.npy"), np.asarray(image.convert("L")))
    np.save(folder / "sixteen.png.grey.npy", (wide >> 8).astype("u1"))
    for height, width in ((5, 8), (22, 20), (11, 6)):
        small = Image.fromarray(smooth).resize((width, height), Image.Resampling.BILINEAR)
        np.save(folder / f"resized_{height}_{width}.npy", np.asarray(small))
    np.save(folder / "smooth.npy", smooth)


def table():
    """Fields that need quotes, as Python's csv writes them, and the fields in JSON."""
    parts = ["a", "b c", ",", ";", "\t", '"', "\n", "\r\n", "ä", "'", "1", "x" * 50]
    rows = [["text", "number"]]
    for i in range(400):
        text = "t" + "".join(random.choice(parts) for _ in range(random.integers(0, 6))) + "t"
        rows.append([text, repr(float(np.float32(random.normal() * 10.0 ** random.integers(-30, 30))))])
    for name, separator in {"comma": ",", "semicolon": ";", "tab": "\t"}.items():
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8-sig" if name == "tab" else "utf-8") as file:
            csv.writer(file, delimiter=separator, lineterminator="\r\n" if name == "comma" else "\n").writerows(rows)
    (folder / "table.json").write_text(json.dumps(rows), encoding="utf-8")


folder.mkdir(exist_ok=True)
arrays()
images()
table()
