#!/usr/bin/env python3
"""manifests.py VERNIER SOURCE: what examples/cluster starts trains together.

Each manifest's words are called as its cluster calls them, once for each of two machines, with the variables that the
cluster sets, in `workingDir` or a folder of the pod's own. Both "machines" are this one, each with one rank. The run
must be that of one process per rank without a manifest, and lie on the volume. Where Python has a YAML reader, it reads
the files too.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

program, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
examples = source / "examples" / "cluster"
configuration = """[run]
steps = 6
device = "cpu"
threads = 1
output = "out"
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
"""


def words_of(manifest):
    """The list under `args:`."""
    lines = (examples / manifest).read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.strip() == "args:") + 1
    words = []
    for line in lines[begin:]:
        if not line.strip().startswith("- "):
            return words
        words.append(line.strip()[2:])
    return words


def checked(manifest, kind):
    text = (examples / manifest).read_text()
    assert f"\nkind: {kind}\n" in text, manifest
    try:
        import yaml
    except ImportError:
        print(f"{manifest}: Python has no YAML reader here, so only its words are tried")
        return text
    read = yaml.safe_load(text)
    assert read["kind"] == kind and read["metadata"]["name"] == "train", read
    return text


def digest(folder):
    return json.loads((folder / "out" / "summary.json").read_text())["digest"]


def place():
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    (folder / "run.toml").write_text(configuration)
    return folder


def wait(processes, what):
    ends = [(process.communicate(timeout=300)[0], process.returncode) for process in processes]
    assert all(status == 0 for _, status in ends), (what, ends)


def trained(manifest, nodes):
    """nodes: the words and the variables of each machine."""
    folder, text = place(), (examples / manifest).read_text()
    begin = folder if "\n                  workingDir: /runs\n" in text else tempfile.mkdtemp(dir=work)
    command = re.search(r"command: \[(.*)\]", text).group(1).split(", ")
    command[-1] = str(program)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "JOB_"))}
    processes = [
        subprocess.Popen([word.replace("/runs", str(folder)) for word in [*command, *words]], cwd=begin,
                         env={**clean, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for words, variables in nodes
    ]
    wait(processes, manifest)
    return digest(folder)


def of_this_machine(words, rank, port):
    """As Kubernetes replaces variables, but with this machine's address and one rank."""
    replaced = []
    for word in words:
        word = word.replace("$(JOB_COMPLETION_INDEX)", str(rank))
        word = re.sub(r"^--address=.*", f"--address=127.0.0.1:{port}", word)
        replaced.append(re.sub(r"^--ranks=\d+", "--ranks=1", word))
    return replaced


with tempfile.TemporaryDirectory() as work:
    port = random.randrange(15000, 30000)
    alone = place()
    wait([subprocess.Popen([program, "launch", "-n", "2", "run.toml", "--quiet"], cwd=alone, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)], "launch -n 2")
    wanted = digest(alone)

    checked("jobset.yaml", "JobSet")
    words = words_of("jobset.yaml")
    assert "--nodes=2" in words and "--node-rank=$(JOB_COMPLETION_INDEX)" in words, words
    assert trained("jobset.yaml", [(of_this_machine(words, rank, port), {"JOB_COMPLETION_INDEX": str(rank)})
                                   for rank in range(2)]) == wanted

    text = checked("trainjob.yaml", "TrainJob")
    words = words_of("trainjob.yaml")
    nodes = re.search(r"numNodes: (\d+)", text).group(1)
    assert trained("trainjob.yaml", [
        (of_this_machine(words, rank, port + 1),
         {"PET_NNODES": nodes, "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1",
          "PET_MASTER_PORT": str(port + 1)}) for rank in range(2)]) == wanted

    # An ssh that stays here.
    folder = place()
    ssh = folder / "here"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    wait([subprocess.Popen(["sh", examples / "ssh.sh", "-n", "1", "run.toml", "--set", 'run.name="it\'s"'], cwd=folder,
                           env={**os.environ, "HOSTS": "127.0.0.1 localhost", "PORT": str(port + 2), "SSH": str(ssh),
                                "VERNIER": str(program)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)],
         "ssh.sh")
    assert digest(folder) == wanted
    assert json.loads((folder / "out" / "summary.json").read_text())["configuration"]["run"]["name"] == "it's"
