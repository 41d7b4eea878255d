#!/usr/bin/env python3
"""pack_fake.py SOURCE: the pack's own work, in a bare folder with a driver, a GPU and programs that only pretend.

What a call measures is kept, a call that runs out of time goes on with the rest, and result.md compares the times of a
step with the figures of docs/guides/gpu.md.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1]).resolve()

# Writes what the parts read of a run: 60 steps, each of as many seconds as the file step_seconds says.
VERNIER = r"""#!/bin/sh
echo "$*" >>../calls
if [ -e ../slow ]; then case $* in *precision.use=fp16*) sleep 60 ;; esac; fi
case $1 in
  profile)
    for word; do case $word in --output=*) echo '{}' >"${word#--output=}" ;; esac; done
    printf 'part  ms\n\nkernel on the GPU       self  total  calls  share\nflash_fwd  1.0  1.0  12.0  3.0%%\n' ;;
  train)
    for word; do case $word in --set=run.output=*) folder=${word#--set=run.output=} ;; esac; done
    mkdir -p "$folder"
    awk -v each="$(cat ../step_seconds)" 'BEGIN { print "step,time"; for (i = 1; i <= 60; ++i) print i "," i * each }' \
      >"$folder/metrics.csv"
    echo '{"this_process": {"peak_memory_bytes": 1073741824}}' >"$folder/summary.json" ;;
esac
"""


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


with tempfile.TemporaryDirectory() as place:
    pack = pathlib.Path(place)
    for name in ("run.py", "parts.py"):
        shutil.copy(source / "tests/gpu" / name, pack)
    shutil.copy(source / "docs/guides/gpu.md", pack)
    write(pack / "VERSION", "fake\n")
    write(pack / "step_seconds", "0.0285\n")
    write(pack / "gpt_pytorch.py", "print('38.0 ms, 1 tokens/s, 8.50 GiB')\n")
    write(pack / "libtorch/lib/libtorch_cpu.so", "")
    write(pack / "vernier/bin/vernier", VERNIER, 0o755)
    write(pack / "bin/nvidia-smi", "#!/bin/sh\necho 'A GPU that pretends, 1.0, 80 GiB'\n", 0o755)
    (pack / "vernier/lib").mkdir()

    def run(*words):
        command = [sys.executable, "run.py", "--libtorch", pack / "libtorch", *words]
        return subprocess.run(command, cwd=pack, env=dict(os.environ, PATH=f"{pack}/bin:{os.environ['PATH']}"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout

    def part(name):
        return json.loads((pack / "result.json").read_text())["parts"][name]

    write(pack / "slow", "")  # a step in fp16 does not end
    printed = run("--seconds", "12", "speed")
    assert part("speed")["state"] == "stopped", printed
    first = part("speed")["values"]
    assert "Vernier bf16" in first and "Vernier fp16" not in first, first
    (pack / "slow").unlink()
    (pack / "calls").unlink()
    write(pack / "step_seconds", "0.0570\n")
    printed = run("speed", "profile")
    assert part("speed")["state"] == "passed" and part("profile")["state"] == "passed", printed
    now = part("speed")["values"]
    assert {name: now[name] for name in first} == first, "what was measured was measured again"
    assert now["Vernier fp16"].startswith("57.0 ms"), now
    assert "precision.use=bf16 optimizer" not in (pack / "calls").read_text()
    assert part("profile")["values"] == {"flash_fwd": "1.0 1.0 12.0 3.0%", "the MLP": "by cuBLASLt"}, part("profile")
    assert (pack / "profile.json.gz").exists() and "flash_fwd" in (pack / "profile.txt").read_text()

    result = (pack / "result.md").read_text().split("beside the figures of gpu.md")[1]
    row = re.search(r"^\| Vernier bf16 \| 28\.5 ms.*", result, re.MULTILINE).group(0)
    before = re.search(r"^\| bf16 \| ([0-9.]+) ms", (source / "docs/guides/gpu.md").read_text(), re.MULTILINE).group(1)
    assert row.endswith(f"| {28.5 / float(before):.2f} | {28.5 / 38:.2f} |"), row
    assert "| Vernier fp32 | 28.5 ms" in result and "| PyTorch eager bf16 | 38.0 ms" in result, result
