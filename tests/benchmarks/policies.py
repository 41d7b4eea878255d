#!/usr/bin/env python3
"""The tables of docs/guides/precision.md: the quickstart under every precision policy, by speed, memory and loss, and
what bf16 brings by size of model.

    python3 tests/benchmarks/policies.py            prints the table of policies
    python3 tests/benchmarks/policies.py --sizes    prints the table of sizes
    python3 tests/benchmarks/policies.py --write    writes the table into docs/guides/precision.md
    python3 tests/benchmarks/policies.py --check    measures the memory of the page's rows again, in seconds, and fails
                                                    where the page is off by more than --tolerance

Each policy trains configs/quickstart.toml for --steps updates from the same seed. Policies are the overlays in
configs/precision, and the variants below whose options the build has. Memory is callback/memory's peak in the tenth
step; losses are compared batch by batch over the last tenth of the steps.

Speed is a ratio of the processor's time. In each of --rounds rounds every policy trains for --timed steps on one
thread, in turn, in every second round in reversed order. The time of a run of a fifth of them is subtracted: it has
read the data, and adaptive has decided. The rest is compared with float32's of the same round. The table has the median
of the rounds, with the lowest and highest. So it can be measured on a machine with other work. Standard library only.
"""
import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = "configs/quickstart.toml"

# Cases that the overlays leave out: label, overlay, options.
VARIANTS = [
    ("bf16, attention of two products", "bf16", {"attention": "matmul"}),
    ("bf16, weight casts kept over an update", "bf16", {"weight_casts": "update"}),
    ("bf16, O3, rounded to nearest", "bf16", {"level": "O3", "rounding": "nearest"}),
    ("bf16, O3, Kahan", "bf16", {"level": "O3", "rounding": "kahan"}),
]


def options_of(program, plugin):
    """What a plugin takes: name -> its choices, [] where it takes anything; {} where there is no such plugin."""
    told = subprocess.run([program, "plugins", plugin], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r"^  (\S+) = .*   \(([^\n]*)\)$", told.stdout, re.M)
    return {name: re.findall(r"\w+", takes.partition(": ")[2]) for name, takes in found} if told.returncode == 0 else {}


def policies(program):
    """(label, overlay, options) of all there are, float32 first."""
    overlays = sorted(path.stem for path in (ROOT / "configs/precision").glob("*.toml"))
    overlays.remove("fp32")
    found = [("fp32", "fp32", {})] + [(name, name, {}) for name in overlays]
    for label, overlay, options in VARIANTS:
        known = options_of(program, "precision/" + overlay)
        if all(key in known and value in known[key] for key, value in options.items()):
            found.append((label, overlay, options))
    text = (ROOT / "configs/precision/fp8.toml").read_text() if "fp8" in overlays else ""
    for recipe in options_of(program, "precision/fp8").get("recipe", []) if text else []:
        if f'recipe = "{recipe}"' not in text:
            found.append((f"fp8, {recipe}", "fp8", {"recipe": recipe}))
    return found


def run(program, overlay, steps, settings, folder):
    """The folder of a finished run, or what refused it."""
    config = (ROOT / BASE).read_text()  # checkpoint.every is not an option of checkpoint/none
    path = pathlib.Path(folder) / "quickstart.toml"
    config = re.sub(r"\[checkpoint\]\n(?:\w.*\n)*", '[checkpoint]\nuse = "none"\n', config)
    path.write_text(config)
    command = [program, "train", str(path), f"configs/precision/{overlay}.toml", "--quiet"]
    settings = [f"run.steps={steps}", f"run.output={folder}/run", "run.validate_every=0", "task.sample_bytes=0",
                f"callback.schedule.warmup_steps={min(40, steps // 2)}"] + settings
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return pathlib.Path(folder) / "run" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]


def peak_of(folder):
    return int(dict(line.rsplit("\t", 1) for line in (folder / "memory.tsv").read_text().splitlines())["peak"])


def words_of(options, sets):
    return [f"precision.{key}={value}" for key, value in options.items()] + sets


def train(program, steps, overlay, options, sets):
    """The run's figures, or what refused it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = words_of(options, sets) + [f"callback.memory.step={min(10, steps)}"]
        ended = run(program, overlay, steps, settings, folder)
        if isinstance(ended, str):
            return {"refused": ended}
        summary = json.loads((ended / "summary.json").read_text())
        return {"losses": [float(line["loss"]) for line in lines_of(ended) if "loss" in line], "peak": peak_of(ended),
                "skipped": summary["updates_skipped"], "validation": summary["validation_loss"]["final"],
                "summary": summary}


def peak(program, overlay, options, sets):
    """The bytes of the tenth step."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run(program, overlay, 10, words_of(options, sets) + ["callback.memory.step=10"], folder)
        return ended if isinstance(ended, str) else peak_of(ended)


def processor_seconds(program, overlay, steps, settings):
    """What a run takes of the processor, or None if it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if isinstance(run(program, overlay, steps, settings, folder), str):
            return None
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speeds(program, cases, rounds, steps, sets):
    """For each case a text: how many times as fast as the first one, the median of the rounds, and their range."""
    ratios = {label: [] for label, _, _ in cases}
    for round_ in range(rounds):
        seconds = {}
        for label, overlay, options in cases if round_ % 2 == 0 else reversed(cases):
            settings = words_of(options, sets) + ["run.threads=1"]
            taken = [processor_seconds(program, overlay, count, settings) for count in (steps // 5, steps)]
            if None not in taken:
                seconds[label] = taken[1] - taken[0]
        for label, mine in seconds.items():
            ratios[label].append(seconds[cases[0][0]] / mine)
        print(f"round {round_ + 1}", {label: all_[-1:] for label, all_ in ratios.items()}, file=sys.stderr)
    return {label: f"{statistics.median(all_):.2f}x ({min(all_):.2f} to {max(all_):.2f})" if all_ else "refused"
            for label, all_ in ratios.items()}


def share(bytes_, of):
    return f"{bytes_ / 1e6:.1f} MB ({100 * bytes_ / of:.0f} %)"


def row(label, overlay, result, reference, speed):
    if "refused" in result:
        return f"| {label} | refused: {result['refused'].replace('|', chr(92) + '|')} | | | | |"
    last = max(1, len(result["losses"]) // 10)
    pairs = list(zip(result["losses"], reference["losses"]))[-last:]
    gap = statistics.mean(mine - theirs for mine, theirs in pairs)
    gap_of_validation = result["validation"] - reference["validation"]
    if result["summary"]["device"] == "cpu" and overlay in ("fp8", "format"):
        speed = "emulated"
    memory = share(result["peak"], reference["peak"])
    return f"| {label} | {memory} | {speed} | {gap:+.4f} | {gap_of_validation:+.4f} | {result['skipped']} |"


def processor():
    try:
        found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found.group(1) if found else "unknown processor"


def table(given):
    cases = [case for case in policies(given.program) if case[0] == "fp32" or not given.only or case[0] in given.only]
    results = {}
    for label, overlay, options in cases:
        results[label] = train(given.program, given.steps, overlay, options, given.set)
        print(label, results[label].get("refused", results[label].get("peak")), file=sys.stderr)
    reference = results["fp32"]
    if "refused" in reference:
        sys.exit(f"policies.py: fp32 does not train: {reference['refused']}")
    timed = speeds(given.program, [case for case in cases if "refused" not in results[case[0]]], given.rounds,
                   given.timed, given.set)
    run_ = reference["summary"]
    where = processor() if run_["device"] == "cpu" else run_["device"]
    last = max(1, given.steps // 10)
    head = [f"`{BASE}`, {given.steps} steps, seed {run_['seed']}, {where}, {run_['threads']} threads, LibTorch "
            f"{run_['versions']['libtorch']}.",
            f"float32 ends at a training loss of {statistics.mean(reference['losses'][-last:]):.4f} (mean of the last "
            f"{last} steps) and a validation loss of {reference['validation']:.4f}; the gaps are to these, in nats.",
            f"Speed is a ratio of the processor's time to fp32's, on one thread: the median of {given.rounds} rounds, "
            f"with the lowest and highest.", "",
            "| policy | peak memory of a step | speed | loss gap | validation gap | skipped |",
            "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join(head + [row(label, overlay, results[label], reference, timed.get(label, ""))
                             for label, overlay, _ in cases])


# Weights in millions, and the GPT that has them: layers, heads, width.
SIZES = [("0.1", 2, 2, 64), ("1", 2, 3, 192), ("10", 4, 7, 448), ("50", 4, 16, 1024)]


def fitting(program, overlay, sets, limit, samples):
    """The samples that accumulation/fit finds room for within a limit."""
    with tempfile.TemporaryDirectory() as folder:
        ended = run(program, overlay, 4, sets + [f'run.memory_limit="{limit}"', f"task.batch_size={samples}",
                                                 "accumulation.use=fit"], folder)
        if isinstance(ended, str):
            sys.exit(f"policies.py: {ended}")
        found = re.findall(r"micro-batches of (\d+) samples", (ended / "log.txt").read_text())
        return int(found[-1]) if found else samples


def sizes(given):
    """What bf16 brings by size of model."""
    rows = []
    for million, layers, heads, width in SIZES:
        if given.only and million not in given.only:
            continue
        sets = given.set + [f"task.layers={layers}", f"task.heads={heads}", f"task.width={width}", "task.batch_size=16",
                            'task.data=["docs"]']
        cases = [("fp32", "fp32", {}), ("bf16", "bf16", {})]
        full, low = (peak(given.program, overlay, {}, sets) for _, overlay, _ in cases)
        limit = full * 3 // 2
        room = [fitting(given.program, overlay, sets, limit, given.most) for _, overlay, _ in cases]
        speed = speeds(given.program, cases, given.rounds, max(12, min(given.timed, int(100 / float(million)))), sets)
        rows.append(f"| {million} million | {layers} of {width} | {full / 1e6:.1f} MB | {share(low, full)} "
                    f"| {limit / 1e6:.1f} MB | {room[0]} | {room[1]} ({room[1] / room[0]:.2f}x) | {speed['bf16']} |")
        print(rows[-1], file=sys.stderr)
    return "\n".join([
        f"{processor()}, GPTs of bytes as in `{BASE}`. Memory and speed are those of a step of 16 windows of 64.",
        f"The limit is 1.5 times fp32's memory. Speed is a ratio of the processor's time on one thread: the median of "
        f"{given.rounds} rounds.", "",
        "| weights | layers | fp32 | bf16 | limit | samples that fit in fp32 | in bf16 | speed of bf16 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |"] + rows)


def check(given):
    """Compares the page's memory with that of this build. Rows in 16 bits have these bytes only
    on a CPU with AMX, and adaptive chooses by time."""
    page = (ROOT / "docs/guides/precision.md").read_text()
    has_amx = "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text()
    compared, wrong = 0, []
    for label, overlay, options in policies(given.program):
        found = re.search(rf"^\| {re.escape(label)} \| ([0-9.]+) MB ", page, re.M)
        if not found or overlay == "adaptive" or (overlay != "fp32" and not has_amx):
            continue
        now = peak(given.program, overlay, options, given.set + ['task.data=["docs/guides"]'])
        compared += 1
        if isinstance(now, str) or abs(now / 1e6 / float(found[1]) - 1) > given.tolerance:
            wrong.append(f"{label}: the page says {found[1]} MB; measured: {now}")
    if wrong or compared == 0:
        sys.exit("docs/guides/precision.md: " + ("; ".join(wrong) or "no row is compared") +
                 "; python3 tests/benchmarks/policies.py --write measures the table again")
    print(f"the memory of {compared} policies is that of the page")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timed", type=int, default=50, help="steps of a round")
    parser.add_argument("--most", type=int, default=128, help="the largest batch of which it is tried how much fits into the limit")
    parser.add_argument("--program", default=str(ROOT / "vernier"), help="default: the wrapper, which builds first")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--only", action="append", default=[], metavar="ROW",
                        help="a row of the table; float32 is always there")
    parser.add_argument("--sizes", action="store_true", help="the table of sizes")
    parser.add_argument("--check", action="store_true", help="compare the page's memory")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--write", action="store_true", help="into docs/guides/precision.md")
    given = parser.parse_args()
    if given.check:
        return check(given)
    name, made = ("sizes", sizes(given)) if given.sizes else ("policies", table(given))
    if not given.write:
        return print(made)
    path = ROOT / "docs/guides/precision.md"
    text = path.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after and not rest.endswith(end):
        sys.exit(f"policies.py: {path} has no lines {begin.strip()} and {end.strip()}")
    path.write_text(before + begin + "\n" + made + "\n\n" + end + after)
    return None


if __name__ == "__main__":
    main()
