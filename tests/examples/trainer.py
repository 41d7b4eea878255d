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

VERNIER, COMPILER = (str(pathlib.Path(each).absolute()) if "/" in each else each for each in sys.argv[1:3])
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
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-500:]}{done.stderr}")
    return done.stderr if fails else done.stdout


def near(name, mine, theirs):
    off = [(a, b) for a, b in zip(mine, theirs) if not abs(a - b) <= 2e-5 * max(1, abs(b))]
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
    longer = [[round(256 * math.sin(0.4 * t + i)) / 64 + (8 * t * i + draw.randrange(8)) / 64 for i in range(2)]
              for t in range(2 * ROWS + 13)]
    series = longer[:ROWS + 14]
    (ROOT / "l.csv").write_text("a,b\n" + "\n".join(",".join(map(str, row)) for row in longer) + "\n")
    (ROOT / "s.csv").write_text("a,b\n" + "\n".join(",".join(map(str, row)) for row in series) + "\n")
    seasons = [[(0, 3, -1, 2)[t % 4] + draw.randrange(8) / 64, (5, 1, 4, -2)[t % 4] + t / 64] for t in range(ROWS + 17)]
    (ROOT / "w.csv").write_text("a,b\n" + "\n".join(",".join(map(str, row)) for row in seasons) + "\n")
    for name, values in (("s", sum(series, [])), ("l", sum(longer, [])), ("w", sum(seasons, [])), ("x", sum(rows, [])), ("k", classes), ("n", sum(numbers, []))):
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
    # Each has ROWS windows. Those of "next" to predict begin at step 1, so that the last ends the series.
    "next": ("sequence", 'kind = "forecast"\ndata = "l.csv"\ncontext = 12\nhorizon = 3\nstride = 2\nwidth = 8\n'
             'level = "training"', ["l.f32"]),
    "level": ("sequence", 'kind = "forecast"\ndata = "s.csv"\ncontext = 14\nhorizon = 1\nwidth = 8\nlevel = "window"\n'
              'outputs = [1]', ["s.f32"]),
    "season": ("sequence", 'kind = "forecast"\ndata = "w.csv"\ncontext = 12\nhorizon = 6\nwidth = 8\nlevel = "window"',
               ["w.f32"]),
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


def changed(name, old, new):
    """Writes the table with another text in the place of one."""
    text = (ROOT / "flats.csv").read_text(encoding="utf-8")
    (ROOT / name).write_bytes(text.replace(old, new, 1).encode() if old else (text + new).encode())
    return name


def refusals(folder, sequence, forecast):
    """Each ends in one line. %s: the folder of the program."""
    row = "x,70,Bern,$1,2,700,small"
    weights = (folder / "model.safetensors").read_bytes()
    for name, damaged in (("cut", weights[:300]), ("type", weights.replace(b'"F32"', b'"I32"')),
                          ("shape", weights.replace(b'"shape":[16,24]', b'"shape":[24,16]')),
                          ("far", weights.replace(b'"data_offsets":[', b'"data_offsets":[9999')),
                          ("nan", weights[:-4] + b"\0\0\xc0\x7f")):
        (ROOT / f"{name}.safetensors").write_bytes(damaged)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100, 24), }"
    (ROOT / "other.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(9600))
    cases = [
        (["evaluate", changed("no.csv", "area,", "area2,")], "no.csv: column 'area' is missing"),
        (["evaluate", changed("two.csv", "floor,", "area,")], "two.csv: two columns are called 'area'"),
        (["evaluate", changed("word.csv", "", row.replace("70", "much"))],
         "word.csv line 202: column 'area' is 'much', which is not a number as in the training"),
        (["evaluate", changed("group.csv", "", row.replace("$1", '"$1,2"'))], "column 'fee' is '$1,2'"),
        (["evaluate", changed("signs.csv", "", row.replace("$1", "1$2"))], "column 'fee' is '1$2'"),
        (["evaluate", changed("few.csv", "", "x,70,Bern")], "line 202: it has 3 fields, and the first line has 7"),
        (["evaluate", changed("gap.csv", "\n", "\n\n")], "line 2: it has 1 fields"),
        (["evaluate", changed("open.csv", "", 'x,70,"Bern')], "line 202: it has an opening quote that is never closed"),
        (["evaluate", changed("quote.csv", "", 'x,70,Be"rn')], "line 202: it has a quote within a field"),
        (["evaluate", changed("behind.csv", "", 'x,70,"Be"rn')], "line 202: it has text behind a closing quote"),
        (["evaluate", changed("null.csv", "", "x\0" + row)], "null.csv: it has a byte that is 0"),
        (["evaluate", "none.csv"], "none.csv: No such file"),
        (["evaluate", "."], ".: it is a folder"),
        (["evaluate", "flats.csv", "y.npy"], "the targets are a column of the table"),
        (["predict", "flats.csv", "--weights", "cut.safetensors"], "cut.safetensors: "),
        (["predict", "flats.csv", "--weights", "type.safetensors"], "and the model needs"),
        (["predict", "flats.csv", "--weights", "shape.safetensors"], "layers.1.weight' is {"),
        (["predict", "flats.csv", "--weights", "far.safetensors"], "does not lie within the file"),
        (["predict", "flats.csv", "--weights", "nan.safetensors"], "has NaN or infinite numbers"),
        (["train", "flats.csv"], "train needs --output"),
        (["train", "flats.csv", "--output", "no/such"], "No such file or directory"),
        (["train", "flats.csv", "--output", "big", "--learning-rate", "1e14"], "try a lower --learning-rate"),
        (["train", "flats.csv", "--epochs", "1.5"], "--epochs is '1.5', and must be a whole number from 0"),
        (["train", "flats.csv", "--order", "up"], "--order is 'up', and must be shuffled or sequential"),
        (["train", "flats.csv", "--epoch", "1"], "--epoch is no option"),
        (["predict"], "name the data, as in `trainer predict data.csv`")]
    of_sequence = [
        (["predict", "other.npy"], "that are not samples of 12, [samples, steps, numbers]"),
        (["predict", "flats.csv"], "flats.csv: arrays are .npy files, or .f32 files"),
        (["evaluate", "x.f32"], "name the targets' file after the data file"),
        (["evaluate", "x.f32", "x.f32"], "x.f32: it has 2400 samples, and x.f32 has 200")]
    (ROOT / "short.f32").write_bytes((ROOT / "s.f32").read_bytes()[:8 * 14])  # one step after the window is missing
    of_forecast = [
        (["evaluate", "short.f32"], "short.f32: it has 14 steps, and a window has 15"),
        (["evaluate", "s.f32", "k.f32"], "the targets are the next steps of the series; leave 'k.f32' out")]
    for program, all_cases in ((folder, cases), (sequence, of_sequence), (forecast, of_forecast)):
        for arguments, says in all_cases:
            more = [] if "--weights" in arguments else ["--weights", program / "model.safetensors"]
            said = call(program / "trainer", *arguments, *more, fails=True)
            if says not in said or said.count("\n") != 1:
                sys.exit(f"{arguments}: {said}")
    if (ROOT / "big").exists() or list(ROOT.glob("*.part")):
        sys.exit("a training that failed left a file")
    lines = (ROOT / "flats.csv").read_text(encoding="utf-8").splitlines()
    towns = [lines[0]] + [line.replace("Bern", "Thun") for line in lines[1:] if "Bern" in line][:19]
    (ROOT / "towns.csv").write_text("\n".join(towns), encoding="utf-8")
    done = subprocess.run([folder / "trainer", "predict", "towns.csv", "--weights", folder / "model.safetensors"], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    if "column 'town': 19 of 19 values are unknown, such as 'Thun'" not in done.stderr or len(done.stdout.split()) != 20:
        sys.exit(f"unknown words: {done}")
    for task, says in (('use = "mlp"', "mlp cannot be exported as a trainer; task/tabular and LSTMs of task/sequence can"),
                       ('use = "sequence"\nmodel = "gru"\nkind = "forecast"\ndata = "x.csv"\nheader = false',
                        'this run has model = "gru"'),
                       ('use = "sequence"\nkind = "forecast"\ndata = "flats.csv:floor"\nmissing = "zero"\nseries = "size"\n'
                        'context = 4', 'this run has `series` = "size"'),
                       (f'use = "tabular"\ntarget = "rent"\nresidual = true\n{FLATS}', "the blocks of residual = true"),
                       (f'use = "tabular"\ntarget = "size"\nbalanced = true\n{FLATS}', "class_weights or balanced")):
        (ROOT / "other.toml").write_text(f'[run]\nsteps = 2\n[optimizer]\nuse = "adamw"\n[task]\n{task}')
        shutil.rmtree(ROOT / "runs/other", ignore_errors=True)
        call(VERNIER, "train", "other.toml", "--quiet", "--set", "run.name=other")
        said = call(VERNIER, "export", "runs/other", "--format", "trainer", "--output", "no", fails=True)
        if says not in said:
            sys.exit(said)


write_table()
write_sequences()
folders = {name: compare(name, *case) for name, case in CASES.items()}
if "season = 4;" not in (folders["season"] / "trainer.cpp").read_text():
    sys.exit("the season of w.csv is not 4 steps")
tried = same_bits(folders["rent"], CASES["rent"][2]) + same_bits(folders["kinds"], CASES["kinds"][2])
refusals(folders["rent"], folders["kinds"], folders["level"])
print("the same bits:", ", ".join(sorted(set(tried))))
shutil.rmtree(ROOT)
