"""Runs the parts of the pack, the most important first, each within its limit of time.

    run.py [--libtorch DIR] [--seconds N] [--again] [PART]...

A second call goes on with the parts that were not reached, stopped or skipped; a part that was stopped goes on with what it has not measured.
--again tries all of them anew, and PART only those named. result.md compares with the figures of gpu.md, which were measured before.
Exit status: 0 if no part failed, 1 if one did, 2 if the pack cannot run here.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import parts

HERE = pathlib.Path(__file__).resolve().parent


class Machine:
    """The installation of the pack, the folder for runs, and the time that is left."""

    def __init__(self, libtorch, seconds):
        self.here = HERE
        self.root = HERE / "vernier"
        self.work = HERE / "work"
        self.log = HERE / "log"
        self.seconds = seconds
        self.end = time.monotonic() + seconds
        self.part = ""
        self.limit = self.end
        self.libtorch = libtorch
        self.known = {}  # the values of a part that was stopped, from which it goes on
        self.gpu = self.name_of_gpu()
        self.device = "cuda" if self.gpu else "cpu"
        for folder in (self.work, self.log):
            folder.mkdir(exist_ok=True)

    @staticmethod
    def name_of_gpu():
        if shutil.which("nvidia-smi") is None:
            return ""
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        asked = subprocess.run(query, capture_output=True, text=True, check=False)
        return asked.stdout.strip().split("\n")[0] if asked.returncode == 0 else ""

    def environment(self, more=None):
        everything = dict(os.environ, **(more or {}))
        everything["LD_LIBRARY_PATH"] = f"{self.root}/lib:{self.root}/lib/libtorch/lib"
        everything["TMPDIR"] = str(self.work)
        return everything

    def start(self, command, more=None):
        """Starts a command, whose output goes to the log of the part."""
        log = open(self.log / f"{self.part}.log", "a", encoding="utf-8")
        log.write(f"\n$ {' '.join(map(str, command))}\n")
        log.flush()
        return subprocess.Popen(list(map(str, command)), cwd=self.work, env=self.environment(more), text=True,
                                stdout=subprocess.PIPE, stderr=log, start_new_session=True)

    def call(self, command, more=None, status=0):
        """Runs a command within the limit of the part. Returns its output; another exit status is a failure."""
        process = self.start(command, more)
        try:
            output, _ = process.communicate(timeout=max(1, self.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise parts.OutOfTime(f"{pathlib.Path(command[0]).name} took longer than the part may") from None
        with open(self.log / f"{self.part}.log", "a", encoding="utf-8") as log:
            log.write(output)
        if status is not None and process.returncode != status:
            end = (self.log / f"{self.part}.log").read_text(encoding="utf-8").strip().split("\n")[-1]
            raise parts.Failed(f"{pathlib.Path(command[0]).name} ended with status {process.returncode}: {end[:300]}")
        return output

    def vernier(self, *arguments, status=0):
        return self.call([self.root / "bin/vernier", *arguments], status=status)


def find_libtorch(given):
    if given:
        found = pathlib.Path(given)
    else:
        module = importlib.util.find_spec("torch")
        if module is None:
            sys.exit("this Python has no torch: name its LibTorch with --libtorch DIR")
        found = pathlib.Path(module.origin).parent
    if not (found / "lib/libtorch_cpu.so").exists():
        sys.exit(f"{found} has no lib/libtorch_cpu.so: --libtorch takes the folder with lib/")
    return found.resolve()


def link(libtorch):
    place = HERE / "vernier/lib/libtorch"
    if place.is_symlink() or place.exists():
        place.unlink()
    place.symlink_to(libtorch)


def try_part(machine, part, earlier, is_named):
    """One entry of result.json. A part that is named may take all the time, the others their share."""
    machine.part = part.name
    machine.known = earlier.get("values", {}) if earlier.get("state") == "stopped" else {}
    start = time.monotonic()
    share = machine.seconds if is_named else machine.seconds * part.share / sum(each.share for each in parts.PARTS)
    machine.limit = min(start + share, machine.end)
    entry = {"state": "passed", "device": machine.device, "reason": "", "values": {}}
    if part.needs_gpu and not machine.gpu:
        return dict(entry, state="skipped", reason="there is no GPU here")
    try:
        entry["values"] = part.run(machine) or {}
    except parts.Skipped as why:
        entry.update(state="skipped", reason=str(why))
    except parts.OutOfTime as why:
        entry.update(state="stopped", reason=str(why), values=why.values)
    except parts.Failed as why:
        entry.update(state="failed", reason=str(why), values=why.values)
    except Exception as error:  # a mistake of the part: the next one is tried all the same
        entry.update(state="failed", reason=f"{type(error).__name__}: {error}")
    entry["seconds"] = round(time.monotonic() - start, 1)
    return entry


def milliseconds(text):
    found = re.match(r"([0-9.]+) ms", str(text))
    return float(found.group(1)) if found else None


def figures_of(page):
    """The times of a step in a page's table of measured times: {"Vernier bf16": "57 ms, 7.5 GiB", ...}."""
    figures, peers = {}, []
    for line in page.split("### Measured times")[-1].splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if cells[1:3] == ["Vernier", "PyTorch eager"]:
            peers = ["Vernier", "PyTorch eager", "PyTorch compile"]
        elif peers and not line.startswith("|"):
            break
        elif peers and milliseconds(cells[1]):
            figures.update({f"{peer} {cells[0].lower()}": figure for peer, figure in zip(peers, cells[1:]) if figure})
    return figures


def compared(results, figures):
    """What has changed since the figures were measured, and how far a step is from PyTorch's in this run."""
    measured = results["parts"].get("speed", {}).get("values", {})
    lines = []
    for name, now in measured.items():
        before, own = milliseconds(figures.get(name)), milliseconds(now)
        if own is None:
            continue
        peer = re.sub("^Vernier", "PyTorch compile", name)
        rival = milliseconds(measured.get(peer)) if peer != name else None
        lines.append(f"| {name} | {now} | {figures.get(name, '')} | {f'{own / before:.2f}' if before else ''} | "
                     f"{f'{own / rival:.2f}' if rival else ''} |")
    head = ["", "## A step of GPT-2 beside the figures of gpu.md", "",
            "| | now | before | now / before | now / `torch.compile` |", "| --- | --- | --- | --- | --- |"]
    return head + lines if lines else []


def table(results):
    lines = ["| part | state | seconds | what it shows |", "| --- | --- | --- | --- |"]
    for part in parts.PARTS:
        entry = results["parts"].get(part.name, {"state": "not reached", "reason": ""})
        shown = part.shows + (": " + entry["reason"] if entry["reason"] else "")
        lines.append(f"| {part.name} | {entry['state']} | {entry.get('seconds', '')} | {shown} |".replace("\n", " "))
    for part in parts.PARTS:
        values = results["parts"].get(part.name, {}).get("values", {})
        if values:
            lines += ["", f"## {part.name}", "", "| | |", "| --- | --- |"]
            lines += [f"| {name} | {value} |" for name, value in values.items()]
    return lines


def write(results):
    (HERE / "result.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    head = [f"# Vernier {results['version']} on {results['gpu'] or 'a machine without a GPU'}", ""]
    page = (HERE / "gpu.md").read_text(encoding="utf-8")
    lines = head + table(results) + compared(results, figures_of(page))
    (HERE / "result.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def earlier_results(again):
    file = HERE / "result.json"
    return json.loads(file.read_text(encoding="utf-8"))["parts"] if file.exists() and not again else {}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--libtorch")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("part", nargs="*", choices=[[], *(part.name for part in parts.PARTS)])
    given = parser.parse_args()
    libtorch = find_libtorch(given.libtorch)
    link(libtorch)
    machine = Machine(libtorch, given.seconds)
    results = {"version": (HERE / "VERSION").read_text(encoding="utf-8").strip(), "gpu": machine.gpu,
               "libtorch": str(libtorch), "parts": earlier_results(given.again)}
    for part in parts.PARTS:
        if given.part and part.name not in given.part:
            continue
        if not given.part and results["parts"].get(part.name, {}).get("state") in ("passed", "failed"):
            continue
        if machine.end - time.monotonic() < 5:
            print("no time is left: call again, and it goes on here")
            break
        entry = try_part(machine, part, results["parts"].get(part.name, {}), bool(given.part))
        results["parts"][part.name] = entry
        write(results)
        print(f"{entry['state']:8} {part.name:12} {entry.get('seconds', 0):6} s  {entry['reason']}", flush=True)
    write(results)
    sys.exit(any(entry["state"] == "failed" for entry in results["parts"].values()))


if __name__ == "__main__":
    main()
