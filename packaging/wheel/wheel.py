#!/usr/bin/env python3
"""wheel.py PREFIX OUT: packs an installation of Vernier as a wheel for one minor version of LibTorch. Prints its path.

The wheel has the tree of PREFIX as the package `vernier`, with the libraries that it needs (packaging/bundle.sh). It
finds LibTorch in the package `torch` beside it. It needs Python's standard library, binutils and a shell to be made.

Its tag is the lowest that its symbols allow: a build on an older system, or in an image of manylinux, gets a lower one.
"""
import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST = 32 << 20  # bytes

# The minor version of glibc that a tag manylinux_2_<minor> needs, and the newest symbols GLIBCXX and CXXABI that it
# allows. Source: PEP 600, auditwheel.
POLICIES = ((28, "3.4.24", "1.3.11"), (31, "3.4.28", "1.3.12"), (34, "3.4.29", "1.3.13"), (35, "3.4.30", "1.3.13"),
            (39, "3.4.33", "1.3.15"))

# The run path of an installation, and that of the wheel: site-packages/vernier/lib, site-packages/torch/lib.
INSTALLED, IN_WHEEL = b"$ORIGIN/../lib/libtorch/lib", b"$ORIGIN/../../torch/lib"

# Files that shells and man look for in a prefix, not in a package.
SHARED = ("share/man", "share/bash-completion", "share/zsh", "share/fish")


def fail(text):
    sys.exit(f"wheel.py: {text}")


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def numbers(version):
    return [int(number) for number in version.split(".")]


def find_torch_beside(path):
    """Changes the run path of a program or library in its place."""
    data = path.read_bytes()
    if data.count(INSTALLED) > 1:
        fail(f"{path}: its run path is there twice")
    path.write_bytes(data.replace(INSTALLED + b"\0", IN_WHEEL.ljust(len(INSTALLED) + 1, b"\0")))


def tag_of(elves):
    """Returns the tag, and the files that need its newest symbols."""
    newest = {"GLIBC": ["2.17"], "GLIBCXX": ["3.4"], "CXXABI": ["1.3"]}
    for path in elves:
        for kind, version in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\b", output_of("objdump", "-p", str(path))):
            newest[kind].append(version)
    glibc, cxx, abi = (max(map(numbers, newest[kind])) for kind in ("GLIBC", "GLIBCXX", "CXXABI"))
    for minor, most_cxx, most_abi in POLICIES:
        if cxx <= numbers(most_cxx) and abi <= numbers(most_abi):
            return f"py3-none-manylinux_2_{max(minor, glibc[1])}_{os.uname().machine}"
    fail(f"no tag of manylinux has GLIBCXX_{'.'.join(map(str, cxx))}; build on an older system")


def check_bundled(elves, library_folder):
    """A bundled library has no run path: what it needs of the others, each program that loads it must need as well."""
    needs = {path.name: re.findall(r"NEEDED +(\S+)", output_of("objdump", "-p", str(path))) for path in elves}
    bundled = {path.name for path in library_folder.iterdir() if not path.name.startswith("libvernier") and path.is_file()}
    for name, direct in needs.items():
        for library in bundled.intersection(direct) if name not in bundled else ():
            missing = bundled.intersection(needs[library]).difference(direct)
            if missing:
                fail(f"{name} loads {library}, which needs {', '.join(missing)}, and does not link that: link it too")


def check_paths(files, strange):
    for path in files:
        data = path.read_bytes()
        for word in strange:
            if word.encode() in data:
                fail(f"{path} contains the path {word} of this machine")


def copyrights(libraries, folder):
    """Writes the licences of bundled libraries, where Debian's packages have them."""
    for library in libraries:
        found = subprocess.run(["dpkg-query", "--search", os.path.basename(os.path.realpath(library))], check=False,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) if shutil.which("dpkg-query") \
            else None
        package = found.stdout.split(":")[0] if found else ""
        text = Path("/usr/share/doc") / package / "copyright"
        known = [each for each in folder.iterdir() if text.is_file() and each.read_bytes() == text.read_bytes()]
        if package and text.exists() and not known:
            shutil.copy(text, folder / f"{package}.txt")


METADATA = """\
Metadata-Version: 2.4
Name: vernier
Version: {version}
Summary: A training framework for LibTorch: strategies as plugins
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Development Status :: 4 - Beta
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Requires-Dist: torch=={minor}.*
Description-Content-Type: text/markdown

# Vernier

Vernier trains neural networks in C++, on LibTorch, which is inside of the package torch: this wheel was built with
{libtorch}. The wheel has the programs, the plugins, the SDK for plugins and own training loops, and a CMake package.

```sh
vernier new toml flats.csv --target rent && vernier train flats.toml
cmake -B build -DVernier_DIR=$(vernier --cmake-dir)
```

```python
import vernier
vernier.train("flats.toml", run={{"epochs": 3}}).metrics["loss"]
```
"""


def write_information(folder, installed, tag_maker):
    said = output_of(str(installed / "bin/vernier"), "--version")
    version, libtorch = re.search(r"^vernier (\S+),.*torch=?\s*([0-9.]+)", said).groups()
    minor = ".".join(libtorch.split(".")[:2])
    folder = folder / f"vernier-{version}.dist-info"
    (folder / "licenses").mkdir(parents=True)
    shutil.copy(HERE.parent.parent / "LICENSE", folder / "licenses")
    (folder / "METADATA").write_text(METADATA.format(version=version, minor=minor, libtorch=libtorch), encoding="utf-8")
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\nvernier = vernier.__main__:main\n\n[cmake.prefix]\nvernier = vernier\n", encoding="utf-8")
    (folder / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: vernier {version}\nRoot-Is-Purelib: false\nTag: {tag_maker}\n", encoding="utf-8")
    return version, folder


def write_wheel(tree, information, path):
    """Writes the archive: the same bytes of the same files."""
    record, lines = information / "RECORD", []
    files = sorted(each for each in tree.rglob("*") if each.is_file())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        def add(file, data):
            name = file.relative_to(tree).as_posix()
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | (0o755 if os.access(file, os.X_OK) else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            return name
        for file in files:
            data = file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{add(file, data)},sha256={digest},{len(data)}\n")
        lines.append(f"{record.relative_to(tree).as_posix()},,\n")
        record.write_text("")
        add(record, "".join(lines))


def main(prefix, out):
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        package = tree / "vernier"
        shutil.copytree(prefix, package, symlinks=True)
        for path in package.rglob("*"):
            if path.is_symlink():  # a wheel has none; lib/libtorch is one
                path.unlink()
        bundled = output_of("sh", str(HERE.parent / "bundle.sh"), str(package)).split()
        shutil.copytree(HERE / "vernier", package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        elves = [path for path in package.rglob("*") if path.is_file() and is_elf(path)]
        for path in elves:
            find_torch_beside(path)
        check_bundled(elves, package / "lib")
        config = package / "lib/cmake/Vernier/VernierConfig.cmake"
        config.write_text(config.read_text().replace("/../../libtorch\"", "/../../../../torch\""))
        version, information = write_information(tree, prefix, tag := tag_of(elves))
        copyrights(bundled, information / "licenses")
        for folder in filter(lambda folder: (package / folder).is_dir(), SHARED):
            target = tree / f"vernier-{version}.data/data" / folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(package / folder, target)
        check_paths((path for path in tree.rglob("*") if path.is_file()),
                    {str(prefix), str(HERE.parent.parent), os.path.realpath(prefix / "lib/libtorch")})
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("vernier-*.whl"):
            old.unlink()
        wheel = out / f"vernier-{version}-{tag}.whl"
        write_wheel(tree, information, wheel)
    if wheel.stat().st_size > MOST:
        fail(f"{wheel} has {wheel.stat().st_size} bytes, and {MOST} at most are allowed")
    print(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
