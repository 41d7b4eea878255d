"""Exports models as programs that train without LibTorch, and compares these with Vernier.

    python3 tests/examples/trainer.py VERNIER COMPILER

Losses of three epochs in the same order agree within 2e-5 of them, predictions too; programs of other flags, of clang,
of musl and of aarch64 (where these are installed) have the same bits; Vernier goes on with the weights.
"""
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

VERNIER, COMPILER = (str(pathlib.Path(each).resolve()) if "/" in each else each for each in sys.argv[1:3])
EPOCHS, BATCH, ROWS = 3, 32, 200
ROOT = pathlib.Path(tempfile.mkdtemp())

RUN = """[run]
epochs = {epochs}
validate_every = 0
threads = 1
{more}
[task]
use = "{use}"
validation_share = 0
order = "sequential"
batch_size = {batch}
{task}
[optimizer]
use = "adamw"
learning_rate = 0.01

[[monitor]]
use = "jsonl"
"""


def call(*command, fails=False):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if fails else done.stdout


def near(name, mine, theirs):
    off = [(a, b) for a, b in zip(mine, theirs) if abs(a - b) > 2e-5 * max(1, abs(b))]
    if off or len(mine) != len(theirs):
        sys.exit(f"{name}: {len(mine)} and {len(theirs)} numbers, of which differ {off[:5]}")


def write_table():
    """Words with commas and quotes, money, missing numbers and words, and columns that no model reads."""
    draw = random.Random(1)
    towns = ["Bern", '"Old, ""Town"""', "Zürich", ""]
    with open(ROOT / "flats.csv", "w", encoding="utf-8") as to:
        to.write("id,area,town,fee,floor,rent,size\n")
        for i in range(ROWS):
            area, town, floor = draw.uniform(20, 140), draw.randrange(4), draw.randrange(6)
            rent = 300 + 11 * area + 150 * town - 9 * floor + draw.gauss(0, 40)
            floor = "NA" if i % 17 == 3 else floor
            size = "small" if area < 60 else "middle" if area < 110 else "large"
            to.write(f'x{i},{area:.2f},{towns[town]},"${draw.uniform(900, 2500):,.0f}",{floor},{rent:.2f},{size}\n')


def write_sequences():
    """Sines of three rates, in quarters that each format holds exactly."""
    draw = random.Random(2)
    rows, classes, numbers = [], [], []
    for _ in range(ROWS):
        kind, phase = draw.randrange(3), draw.uniform(0, 6)
        rows.append([round(256 * math.sin((0.3, 0.6, 1.1)[kind] * t + phase)) / 64 for t in range(12)])
        classes.append(kind)
        numbers.append([rows[-1][-1] * 2 + 1, sum(rows[-1])])
    (ROOT / "x.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    (ROOT / "k.csv").write_text("\n".join(map(str, classes)) + "\n")
    (ROOT / "n.csv").write_text("\n".join(",".join(map(str, row)) for row in numbers) + "\n")
    for name, values in (("x", sum(rows, [])), ("k", classes), ("n", sum(numbers, []))):
        (ROOT / f"{name}.f32").write_bytes(struct.pack(f"<{len(values)}f", *values))


FLATS = """data = "flats.csv"
missing = "mean"
thousands = ","
types = {fee = "number"}
"""
CASES = {  # name: task, its options, arguments of the program
    "rent": ("tabular", FLATS + 'target = "rent"\nleave_out = ["id", "size"]\nhidden = [24, 16]', ["flats.csv"]),
    "size": ("tabular", FLATS + 'target = "size"\nleave_out = ["id"]\nhidden = []', ["flats.csv"]),
    "kinds": ("sequence", 'data = "x.csv"\ntargets = "k.csv:1"\nwidth = 13\nlayers = 2\nheader = false',
              ["x.f32", "k.f32"]),
    "ends": ("sequence", 'kind = "regression"\ndata = "x.csv"\ntargets = "n.csv:1,2"\nwidth = 8\nheader = false',
             ["x.f32", "n.f32"]),
}


def losses_of(run):
    """The mean loss of each epoch."""
    lines = [json.loads(line) for line in (ROOT / f"runs/{run}/losses.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    updates = -(-ROWS // BATCH)
    samples = [min(BATCH, ROWS - BATCH * i) for i in range(updates)]
    return [sum(loss * count for loss, count in zip(losses[e * updates:], samples)) / ROWS for e in range(EPOCHS)]


def trained(program, arguments, *more):
    """The losses of the epochs, and the digest of the weights."""
    said = call(*program, "train", *arguments, "--epochs", EPOCHS, "--output", "after.safetensors", *more).split()
    return [float(word) for word in said[3:-2:4]], said[-1]


def compare(name, use, task, arguments):
    def run(folder, more, *sets):
        text = RUN.format(epochs=EPOCHS, more=more, use=use, batch=BATCH, task=task)
        (ROOT / f"{folder}.toml").write_text(text)
        call(VERNIER, "train", f"{folder}.toml", "--quiet", "--set", f"run.name={folder}", *sets)

    run(name, "")
    folder = ROOT / f"{name}.trainer"
    call(VERNIER, "export", f"runs/{name}", "--format", "trainer", "--output", folder)
    call(COMPILER, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", folder / "trainer.cpp", "-o", folder / "trainer")
    program, weights = [folder / "trainer"], ["--weights", folder / "model.safetensors"]
    run(f"{name}2", f'init_from = "{name}.trainer/model.safetensors"')
    losses, _ = trained(program, arguments, *weights, "--order", "sequential")
    near(f"{name}: losses", losses, losses_of(f"{name}2"))

    # Vernier predicts with the weights of the program what the program predicts.
    run(f"{name}3", 'init_from = "after.safetensors"', "--set", "optimizer.learning_rate=0")
    inputs = arguments[0].replace(".f32", ".csv")
    call(VERNIER, "predict", f"runs/{name}3", "--input", inputs, "--output", f"{name}.csv")
    mine = call(*program, "predict", arguments[0], "--weights", "after.safetensors").splitlines()
    theirs = (ROOT / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    if mine[0] != theirs[0]:
        sys.exit(f"the names of the columns are {mine[0]}, and Vernier's are {theirs[0]}")
    numbers = [[float(word) for line in all[1:] for word in line.split(",") if word[:1] in "-0123456789."]
               for all in (mine, theirs)]
    near(f"{name}: predictions", *numbers)
    return folder


def same_bits(folder, arguments):
    """Tries what is installed, and says what."""
    source, others = folder / "trainer.cpp", folder / "other"
    ways = {"-O3 -march=native": [COMPILER, "-O3", "-march=native"], "clang": ["clang++", "-O2"],
            "musl": ["musl-gcc", "-x", "c++", "-O2", "-static", "-s", "-fno-exceptions", "-fno-rtti"],
            "aarch64": ["aarch64-linux-gnu-g++", "-O2", "-static"]}
    digests, tried = {}, []
    for way, command in ways.items():
        runner = ["qemu-aarch64-static"] if way == "aarch64" else []
        if shutil.which(command[0]) is None or (runner and shutil.which(runner[0]) is None):
            continue
        call(*command, "-std=c++20", source, "-o", others)
        if way == "musl" and others.stat().st_size > 100_000:
            sys.exit(f"the static program has {others.stat().st_size} bytes")
        losses, digest = trained([*runner, others], arguments, "--weights", folder / "model.safetensors", "--seed", 5)
        digests[str(losses) + digest] = way
        tried.append(way)
    plain = trained([folder / "trainer"], arguments, "--weights", folder / "model.safetensors", "--seed", 5)
    digests[str(plain[0]) + plain[1]] = "-O2"
    if len(digests) != 1:
        sys.exit(f"other bits: {digests}")
    return tried


def refusals(folder):
    weights = ["--weights", folder / "model.safetensors"]
    table = (ROOT / "flats.csv").read_text(encoding="utf-8")
    (ROOT / "short.csv").write_text(table.replace("area,", "area2,", 1), encoding="utf-8")
    (ROOT / "word.csv").write_text(table + "x,much,Bern,$1,2,700,small\n", encoding="utf-8")
    (ROOT / "odd.csv").write_text(table + "x,70,Bern\n", encoding="utf-8")
    (ROOT / "bad.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:300])
    for arguments, says in (
            (["evaluate", "short.csv"], "there is no column 'area'"),
            (["evaluate", "word.csv"], "word.csv line 202: column 'area' is 'much', which is not a number"),
            (["evaluate", "odd.csv"], "odd.csv line 202: it has 3 fields, and the first line has 7"),
            (["evaluate", "none.csv"], "none.csv: it cannot be read"),
            (["evaluate", "flats.csv", "y.npy"], "the targets are a column"),
            (["train", "flats.csv"], "train needs --output"),
            (["train", "flats.csv", "--output", "no/such"], "no/such: it cannot be written"),
            (["train", "flats.csv", "--epochs", "1.5"], "--epochs must be a whole number"),
            (["train", "flats.csv", "--epoch", "1"], "--epoch 1 is no option"),
            (["predict"], "name the data"),
            (["evaluate", "flats.csv", "--weights", "bad.safetensors"], "bad.safetensors: ")):
        said = call(folder / "trainer", *arguments, *([] if "--weights" in arguments else weights), fails=True)
        if says not in said:
            sys.exit(f"{arguments}: {said}")
    for task, says in (('use = "mlp"', "mlp has no such program; it is for task/tabular, and LSTMs of task/sequence"),
                       ('use = "sequence"\nkind = "forecast"\ndata = "x.csv"\nheader = false',
                        'this run has model = "lstm", kind = "forecast"'),
                       (f'use = "tabular"\ntarget = "rent"\nresidual = true\n{FLATS}', "residual = true has blocks")):
        (ROOT / "other.toml").write_text(f'[run]\nsteps = 2\n[optimizer]\nuse = "adamw"\n[task]\n{task}')
        shutil.rmtree(ROOT / "runs/other", ignore_errors=True)
        call(VERNIER, "train", "other.toml", "--quiet", "--set", "run.name=other")
        said = call(VERNIER, "export", "runs/other", "--format", "trainer", "--output", "no", fails=True)
        if says not in said:
            sys.exit(said)


write_table()
write_sequences()
folders = {name: compare(name, *case) for name, case in CASES.items()}
tried = same_bits(folders["rent"], CASES["rent"][2]) + same_bits(folders["kinds"], CASES["kinds"][2])
refusals(folders["rent"])
print("the same bits:", ", ".join(sorted(set(tried))))
shutil.rmtree(ROOT)
