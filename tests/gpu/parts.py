"""The parts of the pack: what each one tries, and what it measures. A part returns its values, or raises one of the
exceptions below."""
import array
import collections
import concurrent.futures
import csv
import gzip
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time


class Skipped(Exception):
    """The part cannot be tried here."""


class Failed(Exception):
    """The part was tried, and something is wrong."""

    def __init__(self, why, values=None):
        super().__init__(why)
        self.values = values or {}


class OutOfTime(Failed):
    """The part was stopped at its limit."""


Part = collections.namedtuple("Part", "name needs_gpu share run shows")  # share: seconds of seven minutes

SMALL = """
[run]
seed = 3
[task]
use = "mlp"
inputs = 32
hidden = [64, 64]
classes = 10
samples = 4096
batch_size = 32
[optimizer]
use = "adamw"
learning_rate = 1e-3
[checkpoint]
use = "rolling"
every = 20
[[monitor]]
use = "jsonl"
"""

GPT = """
[run]
seed = 3
[task]
use = "gpt"
{task}
order = "sequential"
[optimizer]
use = "adamw"
learning_rate = 3e-4
[checkpoint]
use = "none"
[[monitor]]
use = "jsonl"
"""


def train(machine, name, text, steps, *sets, status=0):
    """Trains a run in a folder of its own. Returns summary.json."""
    folder = machine.work / name
    shutil.rmtree(folder, ignore_errors=True)
    file = machine.work / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    machine.vernier("train", file, "--quiet", f"--set=run.output={folder}", f"--set=run.steps={steps}",
                    f"--set=run.device={machine.device}", *(f"--set={each}" for each in sets), status=status)
    return summary(machine, name)


def summary(machine, name):
    return json.loads((machine.work / name / "summary.json").read_text(encoding="utf-8"))


def losses(machine, name):
    lines = (machine.work / name / "losses.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "step" in line and "loss" in line}


def write_text(machine):
    """Bytes to train on, the same on each machine."""
    words = b"the step is a transaction, and its numbers are the same on each device. ".split()
    state, text = 1, bytearray()
    while len(text) < 400_000:
        state = (state * 1103515245 + 12345) % 2**31
        text += words[(state >> 16) % len(words)] + b" "
    (machine.work / "text.bin").write_bytes(text)


def machine_part(machine):
    """The programs start, and find their libraries."""
    missing = []
    for file in [*machine.root.glob("bin/*"), *machine.root.glob("lib/*.so*"), *machine.root.glob("lib/vernier/*.so")]:
        if file.is_dir() or file.name.startswith(("libtorch", "libvernier_cuda_graph")):
            continue
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, env=machine.environment(),
                                check=False).stdout
        missing += [f"{file.name} needs {line.split()[0]}" for line in listed.splitlines() if "not found" in line]
    if missing:
        raise Failed("; ".join(sorted(set(missing))[:5]))
    version = machine.vernier("version").strip().split("\n")[0]
    ran = train(machine, "first", SMALL, 20, "checkpoint.use=none", "run.device=cpu")
    if ran["ended_by"] != "done":
        raise Failed(f"a run on the CPU ended by {ran['ended_by']}")
    return {"version": version, "gpu": machine.gpu or "none", "python": sys.version.split()[0],
            "glibc": " ".join(platform.libc_ver()), "cores": os.cpu_count(), "libtorch": str(machine.libtorch)}


def kernels(machine):
    """Vernier's CUDA kernels against the CPU, bit by bit, and their times."""
    output = machine.call([machine.root / "bin/test_sdk_apart", "--test-case=gpu: *,*a GPU computes*"], status=None)
    speeds = re.findall(r"speed: (.*)", output)
    values = {line.split(":")[0]: line.split(":", 1)[1].strip() for line in speeds}
    if "Status: SUCCESS" not in output:
        found = re.findall(r"ERROR: (.*)", output)
        raise Failed(found[0] if found else "the test program did not end", values)
    passed = re.findall(r"test cases: +[0-9]+ \| +([0-9]+) passed", output)
    if "skipped: " in output or not passed or int(passed[0]) < 4:
        raise Failed("the test program tried nothing", values)
    return values


def first_steps(machine):
    """A run on the GPU ends, and uses Vernier's kernels."""
    ran = train(machine, "gpu", SMALL, 50)
    said = (machine.log / f"{machine.part}.log").read_text(encoding="utf-8")
    values = {"loss": ran["loss"]["final"], "updates": ran["updates_applied"],
              "kernels": "Vernier's" if "cannot be used" not in said else "LibTorch's"}
    if values["kernels"] != "Vernier's":
        raise Failed("Vernier's CUDA kernels are not used: see the log", values)
    return values


# Precisions and what a loss may differ between CPU and GPU at any of 200 steps, as a share of it.
EQUAL = [
    ("fp32", 1e-3, ["precision.use=fp32"]),
    ("bf16 O1", 3e-2, ["precision.use=bf16"]),
    ("bf16 O2", 3e-2, ["precision.use=bf16", "precision.level=O2"]),
    ("bf16 O3", 5e-2, ["precision.use=bf16", "precision.level=O3", "precision.rounding=kahan"]),
    ("fp16 dynamic", 1e-2, ["precision.use=fp16", "scaler.use=dynamic"]),
    ("fp16 static", 1e-2, ["precision.use=fp16", "scaler.use=static"]),
    ("fp16 statistical", 1e-2, ["precision.use=fp16", "scaler.use=statistical"]),
    ("fp16 per_layer", 1e-2, ["precision.use=fp16", "scaler.use=per_layer"]),
    ("fp16 O2", 1e-2, ["precision.use=fp16", "precision.level=O2", "scaler.use=dynamic"]),
    ("fp8 delayed", 1e-1, ["precision.use=fp8", "precision.recipe=delayed"]),
    ("fp8 current", 1e-1, ["precision.use=fp8", "precision.recipe=current"]),
    ("fp8 rowwise", 1e-1, ["precision.use=fp8", "precision.recipe=rowwise"]),
    ("fp8 block", 1e-1, ["precision.use=fp8", "precision.recipe=block"]),
]


def distance_to_cpu(machine, number):
    """How far the losses of one precision are from those of the CPU, as a share of them."""
    text = GPT.format(task="""data = ["text.bin"]
validation = 0
sample_bytes = 0
layers = 2
heads = 2
width = 64
context = 64
batch_size = 8""")
    sets = EQUAL[number][2]
    of = {}
    for device in ("cpu", machine.device):
        train(machine, f"equal-{number}-{device}", text, 200, f"run.device={device}", "run.threads=2", *sets)
        of[device] = losses(machine, f"equal-{number}-{device}")
    host, device = of["cpu"], of[machine.device]
    if len(host) < 200 or host.keys() != device.keys():
        raise Failed(f"{len(host)} and {len(device)} losses")
    return max(abs(host[step] - device[step]) / abs(host[step]) for step in host)


def equality(machine):
    """The losses of 200 steps on the GPU are those of the CPU, within a bound for each precision."""
    write_text(machine)
    values, wrong, late = {}, [], []
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 3)) as pool:
        tried = [None if name in machine.known else pool.submit(distance_to_cpu, machine, number)
                 for number, (name, _, _) in enumerate(EQUAL)]
        for (name, bound, _), one in zip(EQUAL, tried):
            if one is None:
                values[name] = machine.known[name]
                continue
            try:
                values[name] = f"{one.result():.2g} of {bound:g}"
                if one.result() > bound:
                    wrong.append(name)
            except OutOfTime:
                late.append(name)
            except Failed as why:
                values[name] = str(why)
                wrong.append(name)
    if wrong:
        raise Failed("further from the CPU than the bound: " + ", ".join(wrong), values)
    if late:
        raise OutOfTime("no time was left for " + ", ".join(late), values)
    return values


def resume(machine):
    """A resumed run, and one killed by SIGKILL, end with the bits of one that was never stopped."""
    whole = train(machine, "whole", SMALL, 60)
    train(machine, "halves", SMALL, 30)
    folder = machine.work / "halves"
    machine.vernier("train", machine.work / "halves.toml", "--quiet", f"--set=run.output={folder}",
                    "--set=run.steps=60", f"--set=run.device={machine.device}", "--resume")
    values = {"whole": whole["digest"], "resumed": summary(machine, "halves")["digest"]}
    folder = machine.work / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    command = [machine.root / "bin/vernier", "train", machine.work / "whole.toml", "--quiet",
               f"--set=run.output={folder}", "--set=run.steps=60", f"--set=run.device={machine.device}",
               "--set=run.resume=auto"]
    process = machine.start(command)
    while process.poll() is None and not list(folder.glob("checkpoints/step-*")):
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    machine.call(command)
    values["killed"] = summary(machine, "killed")["digest"]
    if len(set(values.values())) > 1:
        raise Failed("the weights differ", values)
    return {"digest": whole["digest"]}


SWITCH = 'callback=[{use="switch", at_step=150, to={precision={use="bf16"}}}]'
# Runs whose forward and backward become a graph of each of so many kinds.
GRAPHS = [
    ("mlp", SMALL, []),
    ("mlp in micro-batches", SMALL, ["accumulation.micro_batches=3"]),
    ("gpt with dropout", None, ["task.dropout=0.1"]),
    ("gpt with dropout, another precision in the middle", None, ["task.dropout=0.1", SWITCH]),
    ("gpt in bf16", None, ["precision.use=bf16"]),
    ("gpt in bf16 O2", None, ["precision.use=bf16", "precision.level=O2"]),
    ("gpt in fp16, a scale that changes", None,
     ["precision.use=fp16", "scaler.use=dynamic", "scaler.growth_interval=20"]),
]


def graph_engine(machine):
    """Runs with [run] engine = "graph" have the bits of those without, and take less time."""
    write_text(machine)
    gpt = GPT.format(task="""data = ["text.bin"]
validation = 0
sample_bytes = 0
layers = 4
heads = 4
width = 128
context = 64
batch_size = 8""")
    values, wrong = {}, []
    for number, (name, text, sets) in enumerate(GRAPHS):
        if name in machine.known:
            values[name] = machine.known[name]
            continue
        plain = train(machine, f"plain-{number}", text or gpt, 300, *sets)
        graph = train(machine, f"graph-{number}", text or gpt, 300, "run.engine=graph", *sets)
        said = (machine.work / f"graph-{number}" / "vernier.log").read_text(encoding="utf-8")
        lines = re.findall(r"engine: (.*)", said)
        times = [ran["this_process"]["per_update"]["seconds"] * 1000 for ran in (plain, graph)]
        values[name] = f"{times[0]:.2f} ms by operators, {times[1]:.2f} ms by a graph"
        if plain["digest"] != graph["digest"]:
            wrong.append(f"{name} has other weights")
        elif not lines or not lines[0].startswith("a recording computes"):
            wrong.append(f"{name}: " + (lines[0] if lines else "nothing was recorded"))
    if wrong:
        raise Failed("; ".join(wrong), values)
    return values


def recovery(machine):
    """Injected faults are found: recovery skips one, the flight recorder names its place, replay computes it again."""
    text = SMALL + """
[[callback]]
use = "inject"
what = "nan"
where = "activation"
layer = "*"
at_step = 12
[[callback]]
use = "flight_recorder"
[[callback]]
use = "recovery"
non_finite = ["skip 5"]
spike = ["lower_learning_rate"]
"""
    ran = train(machine, "faulty", text, 40)
    if ran["updates_skipped"] != 1 or ran["ended_by"] != "done":
        raise Failed(f"{ran['updates_skipped']} updates were skipped, and the run ended by {ran['ended_by']}")
    said = machine.vernier("replay", machine.work / "faulty", "--step", "25")
    if "same bits" not in said:
        raise Failed("replay has other bits: " + (said.splitlines() or ["nothing"])[0])
    return {"skipped": ran["updates_skipped"], "replay": "same bits"}


def ranks(machine):
    """Two ranks train as one does."""
    one = train(machine, "one", SMALL, 40, "checkpoint.use=none")
    folder = machine.work / "two"
    shutil.rmtree(folder, ignore_errors=True)
    machine.vernier("launch", "-n", "2", machine.work / "one.toml", f"--set=run.output={folder}",
                    "--set=run.steps=40", f"--set=run.device={machine.device}", "--set=checkpoint.use=none")
    two = summary(machine, "two")
    apart = abs(one["loss"]["final"] - two["loss"]["final"]) / one["loss"]["final"]
    said = (machine.log / f"{machine.part}.log").read_text(encoding="utf-8")
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False) if machine.gpu else None
    cards = len(listed.stdout.splitlines()) if listed else 0
    values = {"difference of the last loss": f"{apart:.2g}", "GPUs": cards,
              "sums by": "another way than NCCL" if "NCCL is not available" in said or cards < 2 else "NCCL"}
    if apart > 1e-3:
        raise Failed("two ranks train otherwise than one", values)
    return values


# The options that plugins cannot do without.
NEEDED = {
    "accumulation/schedule": ["effective_batch_size=[64]", "from=[0]"],
    "accumulation/target": ["target_effective_batch_size=64"],
    "callback/alarm": ["metric=\"loss\"", "above=100"],
    "callback/inject": ["at_step=3", "where=\"loss\""],
    "callback/lora": ["targets=[\"layers.*\"]"],
    "callback/swa": ["from=5"],
    "callback/switch": ["at_step=5", "to={precision={use=\"bf16\"}}"],
}


def profile(machine):
    """Where the time of a step of GPT-2 in bf16 goes, by kernel: profile.txt and profile.json.gz beside result.md."""
    write_gpt2(machine)
    text = GPT.format(task=GPT2_TASK)
    file, trace = machine.work / "profile.toml", machine.work / "profile.json"
    file.write_text(text, encoding="utf-8")
    trace.unlink(missing_ok=True)
    printed = machine.vernier("profile", file, "--steps=3", f"--output={trace}", "--set=precision.use=bf16",
                              f"--set=run.device={machine.device}")
    (machine.here / "profile.txt").write_text(printed, encoding="utf-8")
    (machine.here / "profile.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    kernels = printed.split("kernel on the GPU")[1].strip().splitlines()[1:11] if "kernel on the GPU" in printed else []
    if machine.gpu and not kernels:
        raise Failed("the profile names no kernel of the GPU")
    values = {" ".join(line.split()[:-4]): " ".join(line.split()[-4:]) for line in kernels}
    said = (machine.log / f"{machine.part}.log").read_text(encoding="utf-8")
    if machine.gpu:
        values["the MLP"] = "by operators: see the log" if "cuBLASLt cannot be used" in said else "by cuBLASLt"
    return values


def laws(machine):
    """Every plugin keeps the laws of the contract on the GPU, and does not make the host wait for it."""
    files = sorted(machine.root.glob("lib/vernier/plugins/*/*.so"))
    start = time.monotonic()
    results = {}
    kept = set(machine.known.get("kept", "").split())
    files = [file for file in files if f"{file.parent.name}/{file.stem}" not in kept]

    def check(file):
        left = machine.limit - time.monotonic()
        if left < 5:
            return None
        needed = NEEDED.get(f"{file.parent.name}/{file.stem}", [])
        command = [str(machine.root / "bin/vernier"), "check", str(file), "--device=cuda",
                   *(f"--set={each}" for each in needed)]
        try:
            return subprocess.run(command, cwd=machine.work, env=machine.environment(), capture_output=True, text=True,
                                  timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return None

    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for file, ended in zip(files, pool.map(check, files)):
            results[f"{file.parent.name}/{file.stem}"] = ended
    values, broken, late = {"seconds": round(time.monotonic() - start)}, [], []
    with open(machine.log / f"{machine.part}.log", "a", encoding="utf-8") as log:
        for name, ended in results.items():
            if ended is None:
                late.append(name)
                continue
            log.write(f"\n# {name}\n{ended.stdout}{ended.stderr}")
            failed = [line for line in ended.stdout.splitlines() if ": FAILED" in line]
            if ended.returncode == 1:
                broken.append(name)
                values[name] = "; ".join(failed)[:300]
            elif ended.returncode != 0:
                values[name] = "not tried: " + (ended.stderr.strip().splitlines() or [""])[-1][:200]
            else:
                kept.add(name)
    values["kept"] = " ".join(sorted(kept))
    if broken:
        raise Failed("laws are broken by " + ", ".join(broken), values)
    if late:
        raise OutOfTime(f"no time was left for {len(late)} plugins", values)
    return values


def metrics(machine):
    """NVML's numbers of the GPU, and those of the memory ledger."""
    text = SMALL + '\n[[monitor]]\nuse = "csv"\n[[callback]]\nuse = "hardware"\ninterval = 0.2\n[[callback]]\nuse = "memory"\nevery = 10\n'
    train(machine, "metrics", text.replace("hidden = [64, 64]", "hidden = [4096, 4096, 4096]"), 300,
                "checkpoint.use=none")
    header, *rows = (machine.work / "metrics/metrics.csv").read_text(encoding="utf-8").splitlines()
    names = header.split(",")
    last = {}
    for row in rows:
        last.update({name: value for name, value in zip(names, row.split(",")) if value})
    values = {name: last[name] for name in sorted(last) if name.startswith(("gpu_", "memory_"))}
    if not any(name.startswith("gpu_") for name in values):
        raise Failed("there are no numbers of NVML", values)
    return values


def sanitizer(machine):
    """compute-sanitizer finds nothing in the CUDA kernels."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(program):
        raise Skipped("compute-sanitizer is not installed")
    output = machine.call([program, "--tool=memcheck", "--error-exitcode=9", machine.root / "bin/test_sdk_apart",
                           "--test-case=gpu: the CUDA kernels*,gpu: norms*"], status=None)
    found = re.findall(r"ERROR SUMMARY: (\d+) error", output)
    if not found or found[-1] != "0":
        raise Failed("compute-sanitizer reports " + (found[-1] if found else "nothing") + " errors")
    return {"errors": 0}


GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
LORA = """
[[callback]]
use = "lora"
rank = 16
alpha = 32.0
targets = ["*.c_attn", "*.c_proj", "*.c_fc"]
fan_in_fan_out = true
"""
# Name, settings, and more of the configuration.
SPEED = [
    ("bf16", ["precision.use=bf16"], ""),
    ("fp32", ["precision.use=fp32"], ""),
    ("fp8", ["precision.use=fp8", "precision.recipe=current"], ""),
    ("tf32", ["precision.use=fp32", "run.matmul_precision=high"], ""),
    ("fp16", ["precision.use=fp16", "scaler.use=dynamic"], ""),
    ("bf16, adamw in 8 bits", ["precision.use=bf16", "optimizer.state=8bit"], ""),
    ("bf16 O2", ["precision.use=bf16", "precision.level=O2"], ""),
    ("bf16 O3, adamw in 8 bits, recomputed",
     ["precision.use=bf16", "precision.level=O3", "precision.rounding=stochastic", "optimizer.state=8bit",
      "task.recompute=full"], ""),
    ("bf16 O2 with LoRA", ["precision.use=bf16", "precision.level=O2"], LORA),
]


GPT2_TASK = """data = ["tokens.bin"]
folder = "gpt2"
weights = "random"
context = 1024
batch_size = 16
dropout = 0.0"""


def write_gpt2(machine):
    folder = machine.work / "gpt2"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
    tokens = random.Random(1).choices(range(50257), k=1_000_000)
    (machine.work / "tokens.bin").write_bytes(array.array("H", tokens).tobytes())


def step_of_gpt2(machine, name, sets, more):
    """Time and memory of a step: the mean of steps 21 to 60, which a monitor of the run has timed."""
    text = more + GPT.format(task=GPT2_TASK).replace('"jsonl"', '"csv"')
    ran = train(machine, "speed", text, 60, *sets)
    with open(machine.work / "speed/metrics.csv", encoding="utf-8") as file:
        times = [float(row["time"]) for row in csv.DictReader(file)]
    seconds = (times[-1] - times[19]) / 40
    return (f"{1000 * seconds:.1f} ms, {16 * 1024 / seconds:.0f} tokens/s, "
            f"{ran['this_process']['peak_memory_bytes'] / 2**30:.2f} GiB")


def speed(machine):
    """A step of GPT-2 with 124 million parameters on 16 windows of 1024 tokens, and the same in PyTorch."""
    write_gpt2(machine)
    values, failed = {}, []
    tries = [(f"Vernier {name}", step_of_gpt2, (machine, name, sets, more)) for name, sets, more in SPEED]
    for mode in ("eager", "compile"):
        for name in ("bf16", "fp32", "tf32", "fp16"):
            script = [sys.executable, machine.here / "gpt_pytorch.py", name, mode]
            tries.append((f"PyTorch {mode} {name}", lambda *command: machine.call(command).strip(), script))
    for name, call, arguments in [*tries[:3], *tries[9:11], *tries[3:9], *tries[11:]]:
        if name in machine.known:
            values[name] = machine.known[name]
            continue
        try:
            values[name] = call(*arguments)
        except OutOfTime as why:
            raise OutOfTime(str(why), values) from None
        except Failed as why:
            values[name] = str(why)
            failed.append(name)
    if failed:
        raise Failed("these did not run: " + ", ".join(failed), values)
    return values


# In the order of worth: what was never measured, or was mended since, comes first. The shares add up to seven minutes.
PARTS = [
    Part("machine", False, 20, machine_part, "the programs start and find their libraries"),
    Part("kernels", True, 40, kernels, "CUDA kernels have the bits of the CPU; their times"),
    Part("speed", True, 90, speed, "a step of GPT-2 in each precision, and PyTorch's"),
    Part("profile", True, 25, profile, "where the time of a step of GPT-2 in bf16 goes, by kernel"),
    Part("graph", True, 45, graph_engine, "runs by CUDA graphs have the bits of runs by operators; their times"),
    Part("ranks", False, 25, ranks, "two ranks train as one does, by NCCL where there are two GPUs"),
    Part("laws", True, 50, laws, "every plugin keeps the laws of the contract on the GPU"),
    Part("sanitizer", True, 30, sanitizer, "compute-sanitizer finds nothing in the kernels"),
    Part("metrics", True, 15, metrics, "NVML's numbers, and those of the memory ledger"),
    Part("first_steps", True, 15, first_steps, "a run on the GPU ends, and uses these kernels"),
    Part("equality", True, 40, equality, "losses of 200 steps on GPU and CPU, for each precision"),
    Part("resume", False, 15, resume, "a resumed and a killed run end with the bits of a whole one"),
    Part("recovery", False, 10, recovery, "an injected NaN is skipped and found; replay has the same bits"),
]
