#!/usr/bin/env python3
"""The tables of docs/design/performance.md: Vernier, also with engine = "compiled", against a plain LibTorch loop, PyTorch
eager, torch.compile, Lightning, Accelerate and JAX, over five models in float32, bfloat16 and float16 with a scaler.

    ./vernier build && ninja -C build/release peers_plain
    python3 tests/benchmarks/peers.py           measures, and writes docs/design/performance.md and its svg
    python3 tests/benchmarks/peers.py --check   says which bars of this processor are met; writes nothing by itself
    python3 tests/benchmarks/peers.py --quick --models mlp --output /tmp/performance.md    a rough look

Needs torch 2.11.0, numpy and safetensors and, for their columns, lightning, accelerate and jax[cpu]. Use a machine that does
nothing else. All peers have the same start weights and batches (peers/models.py) and the same number of threads. First
each of them trains some steps, whose losses are compared with PyTorch eager's; then they are timed in turn, round by
round. The peers in Python and peers_plain stay alive between the rounds. Vernier is the shipped program, started anew
for each of its rounds with peers/script.toml or peers/gpt.toml; what it needs to start and to warm up is not counted.

Each time is also given as a multiple of the floor: what the products and states of a step need at the rates that
`vernier profile --floor` measures first. callback/mfu counts it (peers/floor.toml).
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE / "peers"))
try:
    import models
except ImportError as missing:
    sys.exit(f"peers.py: {missing}; run: pip install torch==2.11.0 numpy safetensors lightning accelerate jax[cpu]")
import report  # noqa: E402, after the path

PRECISIONS = {"fp32": [], "bf16": ["precision.use=bf16"], "fp16": ["precision.use=fp16", "scaler.use=dynamic"]}
VERNIER = {"vernier": [], "compiled": ["run.engine=compiled"]}
CURVE = 200  # steps whose losses are compared


@dataclasses.dataclass
class Settings:
    program: str
    plain: str
    threads: int
    folder: pathlib.Path  # for everything that is written on the way
    rounds: int
    seconds: float  # of a peer in a round
    curve: int  # steps, and the seconds that they may take
    curve_seconds: float
    slowest: float  # seconds of a step of PyTorch eager; above it the row is left out
    clock: str = "wall"  # or cpu: processor time of all threads
    patience: float = 300  # seconds until a peer that says nothing is given up

    def environment(self):
        """Of Vernier: it keeps the floor and compiled programs in the folder, and not where its users' are."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}


class Lost(Exception):
    """Why a peer cannot be measured."""


class Watched:
    """A process whose output is read line by line, and which is killed if a line takes too long."""

    def __init__(self, command, patience, **options):
        self.patience = patience
        self.process = subprocess.Popen(list(map(str, command)), text=True, bufsize=1, **options)

    def line(self, stream):
        timer = threading.Timer(self.patience, self.process.kill)
        timer.start()
        text = stream.readline()
        if not timer.is_alive():
            raise Lost(f"said nothing for {self.patience:.0f} seconds")
        timer.cancel()
        return text

    def end(self):
        self.process.kill()
        self.process.wait()


class Served:
    """A peer that stays alive and trains as many steps as it is asked for."""

    def __init__(self, command, precision, settings):
        self.errors = tempfile.TemporaryFile("w+", dir=settings.folder)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        # torch.compile's own cache forgets for how many threads and in which precision it has compiled.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(settings.folder / f"compiled-{precision}")}
        more = {**cache, "PEERS_CLOCK": settings.clock}
        self.watched = Watched(command, settings.patience, env={**os.environ, **more}, **pipes)
        self.answer()

    def answer(self):
        if line := self.watched.line(self.watched.process.stdout):
            return json.loads(line)
        self.errors.seek(0)
        said = [text.strip() for text in self.errors if text.strip()]
        raise Lost(said[-1].split(". ")[0][:160] if said else "ended without a word")

    def train(self, steps):
        try:
            self.watched.process.stdin.write(f"{steps}\n")
            self.watched.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why
        return self.answer()

    def losses(self, steps):
        return self.train(steps)["losses"]

    def seconds_a_step(self, steps):
        return self.train(steps)["seconds"] / steps

    def end(self):
        self.watched.end()


def processor_time(process):
    """Seconds that all threads of a process have run."""
    threads = pathlib.Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


class Vernier:
    """The program, one process for each call."""

    def __init__(self, name, precision, folder, settings, more=()):
        model = models.MODELS[name]
        self.folder, self.settings = folder, settings
        self.file = HERE / "peers" / f"{model.task}.toml"
        sets = [f"task.batch_size={model.batch_size}", f"run.threads={settings.threads}", "run.output=run"]
        self.sets = [*sets, *model.sets, *PRECISIONS[precision], *more]

    def run(self, *sets, files=()):
        """The times at which monitor/progress wrote its lines."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        command = [self.settings.program, "train", self.file, *files]
        command += [word for each in (*self.sets, *sets) for word in ("--set", each)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": self.settings.environment()}
        process = Watched(command, self.settings.patience, cwd=self.folder, **pipes)
        try:
            times, last = [], ""
            while line := process.line(process.process.stderr):
                if re.match(r"step \d+/\d+ ", line):
                    is_wall = self.settings.clock == "wall"
                    times.append(time.perf_counter() if is_wall else processor_time(process.process.pid))
                last = line.strip() or last
            if process.process.wait() != 0:
                raise Lost(last[:160] if process.process.returncode > 0 else f"signal {-process.process.returncode}")
            return times
        finally:
            process.end()

    def records(self):
        lines = map(json.loads, (self.folder / "run/losses.jsonl").read_text().splitlines())
        return [line for line in lines if "loss" in line]

    def losses(self, steps):
        self.run(f"run.steps={steps}", "monitor.jsonl.every=1")
        return [float(record["loss"]) for record in self.records()]

    def floor(self):
        """Seconds that a step needs at the rates of the machine's floor."""
        self.run("run.steps=2", files=[HERE / "peers/floor.toml"])
        of_second = json.loads((self.folder / "run/summary.json").read_text())["this_process"]["metrics"]
        if "sol" not in of_second:  # in the first step the operations were counted, which took time
            raise Lost("callback/mfu knows no floor of this step")
        return of_second["sol"] * self.records()[-1]["model_flops"] / of_second["model_flops_per_second"]

    def seconds_a_step(self, steps):
        """A fourth of the steps comes before, to warm up."""
        part = max(1, steps // 4)
        parts = math.ceil(steps / part)
        progress = ("monitor.progress.bar=never", f"monitor.progress.every={part}")
        times = self.run(f"run.steps={part * (parts + 1)}", *progress)
        return (times[-1] - times[0]) / (part * parts)

    def end(self):
        pass


def start(peer, name, precision, folder, settings):
    if peer in VERNIER:
        return Vernier(name, precision, folder, settings, VERNIER[peer])
    if peer == "plain":
        if not os.access(settings.plain, os.X_OK):
            raise Lost("peers_plain is not built; run: ninja -C build/release peers_plain")
        arguments = [settings.plain, folder, precision, models.MODELS[name].batch_size, settings.threads]
    elif peer in ("jax", "jax_loop"):
        arguments = [sys.executable, HERE / "peers/jax_peer.py", peer, name, folder, precision, settings.threads]
    else:
        arguments = [sys.executable, HERE / "peers/python_peer.py", peer, name, folder, precision, settings.threads]
    return Served(arguments, precision, settings)


class Cell:
    """A peer in a row of the table."""

    def __init__(self):
        self.process, self.lost, self.losses, self.seconds = None, "", [], []
        self.nudged = []  # of PyTorch eager: its losses from start weights that differ by a rounding

    def attempt(self, action):
        """Does nothing once the peer is lost."""
        if self.lost:
            return
        try:
            action()
        except Lost as reason:
            self.lose(str(reason))

    def lose(self, reason):
        self.lost, self.seconds = reason, []
        self.end()

    def end(self):
        if self.process is not None:
            self.process.end()
            self.process = None


def probe(eager, settings):
    """Seconds of a step of PyTorch eager, the second one. Loses it if that is too much."""
    first, second = eager.process.train(1), eager.process.train(1)
    eager.losses += first["losses"] + second["losses"]
    if second["seconds"] > settings.slowest:
        raise Lost(f"too slow on this processor: a step of PyTorch eager takes {second['seconds']:.1f} s")
    return second["seconds"]


def train_curves(cells, begin, step, is_float32, settings):
    """Starts the other peers, and lets each train the steps that are compared. step: seconds of an eager one."""
    affordable = max(5, int(settings.curve_seconds / step))
    for peer, cell in cells.items():
        # The check that Vernier and eager train the same in float32 is never cut short.
        is_whole = is_float32 and (peer in VERNIER or peer == "eager")
        steps = settings.curve if is_whole else min(settings.curve, affordable)

        def train():
            if cell.process is None:
                cell.process = begin(peer)
            cell.losses += cell.process.losses(steps - len(cell.losses))

        cell.attempt(train)
    nudged = Cell()
    nudged.attempt(lambda: nudged_losses(nudged, begin, min(settings.curve, affordable)))
    cells["eager"].nudged = nudged.losses
    nudged.end()


def nudged_losses(nudged, begin, steps):
    nudged.process = begin("nudged")
    nudged.losses = nudged.process.losses(steps)


def time_in_turn(cells, step, settings):
    steps = min(max(int(settings.seconds / step), 1), CURVE)
    rounds = min(settings.rounds, max(3, int(settings.rounds * settings.seconds / (steps * step))))
    order = list(cells)
    for turn in range(rounds):
        for peer in order[turn % len(order):] + order[:turn % len(order)]:
            cell = cells[peer]
            cell.attempt(lambda: cell.seconds.append(cell.process.seconds_a_step(steps)))


def measure(name, precision, peers, settings):
    """A row of the table: a Cell for each peer, PyTorch eager first."""
    cells = {peer: Cell() for peer in ["eager", *(peer for peer in peers if peer != "eager")]}

    def begin(peer):
        return start(peer, name, precision, settings.folder / name, settings)

    eager = cells["eager"]
    try:
        eager.process = begin("eager")
        step = probe(eager, settings)
        train_curves(cells, begin, step, precision == "fp32", settings)
        time_in_turn(cells, step, settings)
        if eager.lost:
            raise Lost(eager.lost)
    except Lost as reason:
        for cell in cells.values():
            cell.lose(str(reason) if cell is eager else "not tried, since there is nothing to compare with")
    finally:
        for cell in cells.values():
            cell.end()
    return cells


def floor_of(name, precision, settings):
    """Seconds of a step at the machine's rates; None where Vernier does not know them."""
    try:
        return Vernier(name, precision, settings.folder / name, settings).floor()
    except Lost as reason:
        print(f"{name} {precision}: no floor: {reason}", file=sys.stderr)
        return None


def measure_machine(settings):
    command = [settings.program, "profile", "--floor", "--set", f"run.threads={settings.threads}"]
    subprocess.run(command, cwd=settings.folder, env=settings.environment(), check=True, stderr=subprocess.DEVNULL)


def show(name, precision, cells):
    parts = [f"{peer} {cell.lost or f'{report.milliseconds(cell)} ms'}" for peer, cell in cells.items()]
    print(f"{name} {precision}: " + ", ".join(parts), file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(known):
        def parse(text):
            for name in text.split(","):
                if name not in known:
                    raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
            return text.split(",")

        return parse

    for option, known in (("models", models.MODELS), ("precisions", PRECISIONS), ("peers", report.PEERS)):
        parser.add_argument(f"--{option}", type=names(known), default=list(known), help=",".join(known))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: processor time, for one thread on a machine that does other work too")
    parser.add_argument("--program", default=str(ROOT / "build/release/vernier"), help="default: build/release/vernier")
    parser.add_argument("--plain", help="the plain loop; default: peers_plain beside the program")
    parser.add_argument("--output", type=pathlib.Path, help="default: docs/design/performance.md, and with --check none")
    parser.add_argument("--quick", action="store_true", help="few rounds and steps: shows that all works, no figures")
    parser.add_argument("--check", action="store_true", help="says which bars of this processor are met")
    given = parser.parse_args()
    given.program = os.path.abspath(given.program)
    given.plain = os.path.abspath(given.plain or os.path.join(os.path.dirname(given.program), "peers_plain"))
    given.peers = [peer for peer in report.PEERS if peer in given.peers or peer == "eager"]
    if given.clock == "cpu" and given.threads != 1:
        parser.error("--clock cpu is for --threads 1: the processor time of several threads says nothing of their speed")
    if given.output is None and not given.check:
        given.output = ROOT / "docs/design/performance.md"
    if not os.access(given.program, os.X_OK):
        parser.error(f"{given.program} is not there; build it with ./vernier build, or name another with --program")
    return given


def settings_of(given, folder):
    settings = Settings(given.program, given.plain, given.threads, folder, given.rounds, seconds=2, curve=CURVE,
                        curve_seconds=30, slowest=5, clock=given.clock)
    if given.quick:
        settings.rounds, settings.seconds, settings.curve = min(given.rounds, 3), 0.3, 20
        settings.curve_seconds, settings.slowest = 5, 2
    return settings


def main():
    given = arguments()
    if (load := os.getloadavg()[0]) > 1 and given.clock == "wall":
        print(f"peers.py: other programs are running (load {load:.1f}); times will be too long", file=sys.stderr)
    rows, floors = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(given, pathlib.Path(folder))
        measure_machine(settings)
        for name in given.models:
            models.write(name, settings.folder / name)
            for precision in given.precisions:
                rows[name, precision] = measure(name, precision, given.peers, settings)
                floors[name, precision] = floor_of(name, precision, settings)
                show(name, precision, rows[name, precision])
                if given.output is not None:
                    report.write(given.output, rows, floors, given)  # a failure in a later row keeps this one
            shutil.rmtree(settings.folder / name)
    good = report.tell_differences(rows)
    if given.check:
        good = report.check_bars(rows) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
