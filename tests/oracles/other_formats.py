#!/usr/bin/env python3
"""Writes a table in formats that Vernier does not read, and types the line that its refusal gives for each of them.

    python3 tests/oracles/other_formats.py [build/release/vernier]

For each file, `vernier new toml` must refuse it and name the format, the line must work in a shell, and the file that
it writes must have the numbers of the table. Formats without their program or package here are left out by name. Tried
with pandas 2.3, pyarrow 22, tables 3.10 and openpyxl 3.1. The first bytes of these files are those in other_formats of
tests/sdk/data/readers_test.cpp.
"""
import bz2
import gzip
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy
import pandas
import pyarrow

PROGRAM = str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/vernier").resolve())
TABLE = pandas.DataFrame({"a": numpy.arange(60) * 0.25, "b": (numpy.arange(60) * 7) % 11 * 1.5, "y": numpy.arange(60) % 7 + 0.5})
CSV = TABLE.to_csv(index=False).encode()


def arrow_stream(path):
    with pyarrow.ipc.new_stream(path, pyarrow.Table.from_pandas(TABLE, preserve_index=False).schema) as out:
        out.write_table(pyarrow.Table.from_pandas(TABLE, preserve_index=False))


def tar(path, mode="w"):
    pathlib.Path("table.csv").write_bytes(CSV)
    with tarfile.open(path, mode) as archive:
        archive.add("table.csv")
    pathlib.Path("table.csv").unlink()


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("table.csv", CSV)


def by_program(*words):
    def write(path):
        subprocess.run([*words], input=CSV, stdout=open(path, "wb"), check=True)
    return write


# name of the file, how it is written, what it is called, the file that the line writes
CASES = [
    ("t.parquet", TABLE.to_parquet, "a Parquet file", "t.csv"),
    ("same.csv", TABLE.to_parquet, "a Parquet file", "converted_same.csv"),
    ("two words.parquet", TABLE.to_parquet, "a Parquet file", "two words.csv"),
    ("t.feather", TABLE.to_feather, "an Arrow file", "t.csv"),
    ("v1.feather", lambda path: TABLE.to_feather(path, version=1), "a Feather file", "v1.csv"),
    ("t.arrow", arrow_stream, "an Arrow stream", "t.csv"),
    ("t.h5", lambda path: TABLE.to_hdf(path, key="t"), "an HDF5 file", "t.csv"),
    ("t.orc", TABLE.to_orc, "an ORC file", "t.csv"),
    ("t.xlsx", lambda path: TABLE.to_excel(path, index=False), "a sheet of Excel", "t.csv"),
    ("named.data", lambda path: shutil.move(TABLE.to_excel("n.xlsx", index=False) or "n.xlsx", path), "a sheet of Excel",
     "named.csv"),
    ("t.pkl", TABLE.to_pickle, "a pickle of Python", "t.csv"),
    ("t.dta", lambda path: TABLE.to_stata(path, write_index=False), "a file of Stata", "t.csv"),
    ("twice.csv.gz", lambda path: pathlib.Path(path).write_bytes(gzip.compress(gzip.compress(CSV))), "packed by gzip",
     "twice.csv"),
    ("t.csv.bz2", lambda path: pathlib.Path(path).write_bytes(bz2.compress(CSV)), "packed by bzip2", "t.csv"),
    ("t.csv.xz", lambda path: pathlib.Path(path).write_bytes(lzma.compress(CSV)), "packed by xz", "t.csv"),
    ("x.csv", lambda path: pathlib.Path(path).write_bytes(lzma.compress(CSV)), "packed by xz", "converted_x.csv"),
    ("t.csv.zst", by_program("zstd", "-c"), "packed by Zstandard", "t.csv"),
    ("t.csv.lz4", by_program("lz4", "-c"), "packed by LZ4", "t.csv"),
    ("t.tar", tar, "a tar archive", "t/table.csv"),
    ("it's.tar", tar, "a tar archive", "it's/table.csv"),
    ("t.tar.gz", lambda path: tar(path, "w:gz"), "a tar archive", "t/table.csv"),
    ("t.zip", zipped, "a ZIP archive", "t/table.csv"),
]


def check(name, write, called, result):
    try:
        write(name)
    except (FileNotFoundError, ImportError, NotImplementedError) as error:
        return print(f"{name}: left out: {error}")
    refused = subprocess.run([PROGRAM, "new", "toml", name], capture_output=True, text=True)
    assert refused.returncode != 0 and called in refused.stderr, (name, refused.stderr)
    line = re.search(r"; (?:convert|unpack) it: (.*)", refused.stderr).group(1)
    before = pathlib.Path(name).read_bytes()
    subprocess.run(["sh", "-c", line], check=True)
    assert pathlib.Path(name).read_bytes() == before, name
    if name == "twice.csv.gz":  # the line removes one gzip, and the other is read
        return print(f"{name}: {line}")
    read = pandas.read_csv(result)
    assert numpy.array_equal(read[["a", "b", "y"]].to_numpy(), TABLE.to_numpy()), (name, read)
    command = [PROGRAM, "new", "toml", result, "--target", "y", "--output", "out.toml", "--force"]
    subprocess.run(command, check=True, capture_output=True)
    print(f"{name}: {line}")


def main():
    os.environ["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]  # for python3
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for case in CASES:
            check(*case)


if __name__ == "__main__":
    main()
