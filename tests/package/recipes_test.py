#!/usr/bin/env python3
"""recipes_test.py SOURCE VERSION: the images, the dev container and the recipe for conda are well formed, and know all
that the build needs. It says what it cannot build here: that takes docker, and packages from a network."""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE, VERSION = Path(sys.argv[1]), sys.argv[2]
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"}

# The names at conda-forge of Debian's packages in sdk/components.tsv.
CONDA = {"libboost-program-options-dev": "libboost-devel", "libboost-filesystem-dev": "libboost-devel",
         "libspdlog-dev": "spdlog", "libtomlplusplus-dev": "tomlplusplus", "libxxhash-dev": "xxhash",
         "libgoogle-perftools-dev": "gperftools", "libssl-dev": "openssl", "nlohmann-json3-dev": "nlohmann_json",
         "doctest-dev": "doctest", "zlib1g-dev": "zlib", "libpng-dev": "libpng", "libjpeg-dev": "libjpeg-turbo",
         "libwebp-dev": "libwebp-base", "libpcre2-dev": "pcre2", "libsqlite3-dev": "sqlite"}


def check(is_right, text):
    if not is_right:
        sys.exit(f"recipes_test.py: {text}")


def is_shell(text):
    return subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def try_image(file):
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.M)
    stages = set()
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        check(instruction in INSTRUCTIONS, f"{file}: {instruction} is no instruction")
        if instruction == "RUN":
            check(is_shell(rest), f"{file}: the shell does not read: {rest}")
        if instruction in ("ENTRYPOINT", "CMD"):
            check(all(isinstance(word, str) for word in json.loads(rest)), f"{file}: {rest}")
        if instruction == "FROM" and " AS " in rest:
            stages.add(rest.split(" AS ")[1])
        if instruction == "COPY" and "--from=" in rest:
            check(re.search(r"--from=(\w+)", rest)[1] in stages, f"{file}: {rest}")
        for path in re.findall(r"(?<![/\w])(?:packaging|examples)/\S+\.\w+", rest):
            check((SOURCE / path).exists(), f"{file}: there is no {path}")
    version = re.search(r'^torch=(\S+)', (SOURCE / "vernier").read_text(), re.M)
    check(version, "./vernier names no torch")
    if shutil.which("docker") and subprocess.run(["docker", "info"], check=False, stdout=subprocess.DEVNULL,
                                                 stderr=subprocess.DEVNULL).returncode == 0:
        print(f"{file.name}: docker runs here; build it by hand, it takes half an hour")
    else:
        print(f"{file.relative_to(SOURCE)}: read, and not built: docker does not run here")


def try_dev_container():
    file = SOURCE / ".devcontainer/devcontainer.json"
    container = json.loads(file.read_text())
    check(container["image"] and "tamasfe.even-better-toml" in container["customizations"]["vscode"]["extensions"], container)
    check(is_shell(container["postCreateCommand"]), container["postCreateCommand"])
    check((SOURCE / ".taplo.toml").exists(), "an editor finds no schema for TOML")
    print(".devcontainer: read, and not started: its image comes from a network")


def try_recipe():
    text = (SOURCE / "packaging/conda/recipe.yaml").read_text()
    check(f'version: "{VERSION}"' in text, f"packaging/conda/recipe.yaml has another version than {VERSION}")
    host = re.search(r"\n  host:\n((?:    - .*\n)+)", text)
    check(host, "packaging/conda/recipe.yaml: there is no host section")
    has = {line.split()[1] for line in host[1].splitlines()}
    for row in (SOURCE / "sdk/components.tsv").read_text().splitlines()[1:]:
        for need in row.split("\t")[4].split():
            if need != "-":
                package = CONDA.get(need.split("=")[0])
                check(package in has, f"packaging/conda/recipe.yaml lacks {need.split('=')[0]} of sdk/components.tsv: {package}")
    least, most = re.search(r"libtorch >=([0-9.]+),<([0-9.]+)", text).groups()
    cmake = (SOURCE / "sdk/cmake/LibTorch.cmake").read_text()
    check(f"VERSION_LESS {least})" in cmake and f"VERSION_GREATER_EQUAL {most})" in cmake,
          "packaging/conda/recipe.yaml takes other versions of LibTorch than sdk/cmake/LibTorch.cmake")
    try:
        import yaml
    except ImportError:
        print("packaging/conda: read as text: Python's yaml is not installed")
    else:
        recipe = yaml.safe_load(text)
        for line in recipe["build"]["script"] + recipe["tests"][0]["script"]:
            check(is_shell(line), f"the shell does not read: {line}")
    print("packaging/conda: read, and not built: rattler-build and conda-forge's packages come from a network")


try_image(SOURCE / "packaging/Dockerfile")
try_image(SOURCE / "examples/service/Dockerfile")
try_dev_container()
try_recipe()
