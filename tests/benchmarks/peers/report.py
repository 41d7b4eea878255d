"""What peers.py writes of its measurements: tables, a picture, and which bars are met."""
import importlib.metadata
import pathlib
import platform
import re
import statistics
from xml.sax.saxutils import escape

import models

PEERS = {
    "vernier": "Vernier",
    "compiled": "Vernier, compiled",
    "plain": "plain LibTorch",
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "jax": "JAX",
    "jax_loop": "JAX, steps in a loop",
}
COLOURS = {
    "vernier": "#d1495b",
    "compiled": "#8f2d56",
    "plain": "#30638e",
    "eager": "#8d99ae",
    "compile": "#00798c",
    "lightning": "#edae49",
    "accelerate": "#9c6ade",
    "jax": "#6a994e",
    "jax_loop": "#386641",
}
# The largest distance of two losses, relative where they are above 1. In 16 bits a loss itself has 8 or 11 digits, and
# peers differ in what they round. A model in which a rounding of the start weights grows to more than that may differ
# by twice as much as PyTorch eager then differs from itself.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}
# How many times as fast as PyTorch eager Vernier must be.
BARS = {
    "AMD with AVX-512": {("gpt_small", "fp32"): 2.3, ("gpt_small", "bf16"): 1.8, ("mlp", "fp32"): 2.3},
    "Intel with AMX": {("gpt_small", "fp32"): 1.25, ("gpt_small", "bf16"): 2.2, ("mlp", "fp32"): 1.1},
    "Intel with AVX-512, without AMX": {("gpt_small", "fp32"): 1.25, ("gpt_small", "bf16"): 1.9, ("mlp", "fp32"): 1.1},
}


def cpuinfo(key):
    found = re.search(rf"^{key}\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else ""


def instructions():
    flags = set(cpuinfo("flags").split())
    known = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16", "amx_tile": "AMX"}
    return [name for flag, name in known.items() if flag in flags]


def kind_of_processor():
    """A key of BARS, or "" for any other processor."""
    vendor, has = cpuinfo("vendor_id"), instructions()
    if "AVX-512" not in has:
        return ""
    if vendor == "AuthenticAMD":
        return "AMD with AVX-512"
    if vendor == "GenuineIntel":
        return "Intel with AMX" if "AMX" in has else "Intel with AVX-512, without AMX"
    return ""


def in_milliseconds(seconds):
    value = 1e3 * seconds
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def milliseconds(cell):
    return in_milliseconds(statistics.median(cell.seconds))


def speed(cell, cells):
    """How many times as fast as PyTorch eager: the median of the ratios within a round."""
    return statistics.median(eager / own for eager, own in zip(cells["eager"].seconds, cell.seconds))


def distance(losses, cells):
    pairs = list(zip(losses, cells["eager"].losses))
    apart = [abs(own - eager) / max(1, abs(eager)) for own, eager in pairs]
    return len(pairs), max(apart) if all(one == one for one in apart) else float("inf")  # a NaN is far off


def allowed(precision, cells):
    nudged = cells["eager"].nudged
    return max(TOLERANCE[precision], 2 * distance(nudged, cells)[1] if nudged else 0)


def differences(rows):
    """(name, precision, peer, steps, distance) of each peer that trained."""
    for (name, precision), cells in rows.items():
        for peer, cell in cells.items():
            if peer != "eager" and not cell.lost:
                yield name, precision, peer, *distance(cell.losses, cells)


def tell_differences(rows):
    """Whether all trained the same as PyTorch eager; prints who did not."""
    good = True
    for name, precision, peer, steps, apart in differences(rows):
        most = allowed(precision, rows[name, precision])
        if apart > most:
            good = False
            print(f"{name} {precision}: {PEERS[peer]} trains something else: its losses are up to {apart:.1e} from "
                  f"PyTorch eager's in {steps} steps, and {most:.0e} is allowed")
    return good


def check_bars(rows):
    """Whether the bars of this processor are met; prints each."""
    kind = kind_of_processor()
    good = True
    for (name, precision), cells in rows.items():
        cell = cells.get("vernier")
        if cell is None:
            continue
        told = cell.lost or f"Vernier is {speed(cell, cells):.2f} times as fast as PyTorch eager"
        told = f"{name} {precision}: {told}"
        bar = BARS.get(kind, {}).get((name, precision))
        if bar is None:
            print(told)
            continue
        is_met = not cell.lost and speed(cell, cells) >= bar
        good = good and is_met
        print(f"{'met' if is_met else 'missed'}: {told}; the bar is {bar} on {kind}")
    if not kind:
        print("no bar for this processor")
    return good


def cell_text(peer, cells, floor):
    cell = cells[peer]
    if cell.lost:
        return "none"
    fastest = max(speed(other, cells) for other in cells.values() if not other.lost)
    of_floor = f", {statistics.median(cell.seconds) / floor:.2f}" if floor else ""
    text = f"{milliseconds(cell)} ({speed(cell, cells):.2f}x{of_floor})"
    return f"**{text}**" if speed(cell, cells) == fastest else text


def table(rows, floors, peers):
    lines = ["| model | | floor | " + " | ".join(PEERS[peer] for peer in peers) + " |",
             "| --- | --- | --- |" + " --- |" * len(peers)]
    for (name, precision), cells in rows.items():
        floor = floors[name, precision]
        texts = [in_milliseconds(floor) if floor else "unknown", *(cell_text(peer, cells, floor) for peer in peers)]
        lines.append(f"| {models.MODELS[name].title} | {precision} | " + " | ".join(texts) + " |")
    return lines


def slower_than(rows):
    """A line for each cell in which a peer is faster than Vernier."""
    for (name, precision), cells in rows.items():
        own = cells.get("vernier")
        if own is None or own.lost:
            continue
        for peer, cell in cells.items():
            if peer != "compiled" and not cell.lost and speed(cell, cells) > speed(own, cells):
                more = f"{speed(cell, cells) / speed(own, cells):.2f}"
                yield f"- {models.MODELS[name].title}, {precision}: {PEERS[peer]} is {more} times as fast as Vernier."


def lost(rows):
    """A line for each reason why cells of a row are empty."""
    for (name, precision), cells in rows.items():
        reasons = {}
        for peer, cell in cells.items():
            if cell.lost:
                reasons.setdefault(cell.lost, []).append(PEERS[peer])
        for reason, peers in reasons.items():
            who = "all" if len(peers) == len(cells) else ", ".join(peers)
            yield f"- {models.MODELS[name].title}, {precision}, {who}: {reason}"


def curve_table(rows, peers):
    peers = [peer for peer in peers if peer != "eager"]
    found = {(name, precision, peer): (steps, apart) for name, precision, peer, steps, apart in differences(rows)}
    lines = ["| model | | allowed | " + " | ".join(PEERS[peer] for peer in peers) + " |",
             "| --- | --- | --- |" + " --- |" * len(peers)]
    for (name, precision), cells in rows.items():
        texts, most = [], allowed(precision, cells)
        for peer in peers:
            steps, apart = found.get((name, precision, peer), (0, 0))
            far = " **too far**" if apart > most else ""
            texts.append(f"{apart:.1e} in {steps}{far}" if steps else "none")
        first = f"| {models.MODELS[name].title} | {precision} | {most:.0e} | "
        lines.append(first + " | ".join(texts) + " |")
    return lines


def versions():
    found = [f"Python {platform.python_version()}"]
    for name, title in (("torch", "torch"), ("lightning", "Lightning"), ("accelerate", "Accelerate"), ("jax", "JAX")):
        try:
            found.append(f"{title} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {title}")
    return ", ".join(found)


def text(rows, floors, given, picture):
    threads = f"{given.threads} thread{'s' if given.threads > 1 else ''}"
    where = f"{cpuinfo('model name') or 'unknown processor'} ({', '.join(instructions()) or 'no AVX2'}), {threads}"
    clock = "; processor time, because the machine did other work" if given.clock == "cpu" else ""
    lines = [f"Measured on {where}{clock}; {versions()}."]
    if given.quick:
        lines += ["", "**This was a `--quick` run: few short rounds. It shows that all peers run, and no figures.**"]
    lines += ["", f"![Speed of each peer, PyTorch eager is 1]({picture})", "",
              "Milliseconds a step, the median over the rounds; how many times as fast as PyTorch eager; and the time as a "
              "multiple of the floor, what the step's products and states need at this machine's rates:", ""]
    lines += table(rows, floors, given.peers)
    slower, empty = list(slower_than(rows)), list(lost(rows))
    lines += ["", "Where Vernier is not the fastest:" if slower else "No peer was faster than Vernier."]
    lines += ["", *slower] if slower else []
    lines += ["", "Cells that could not be measured:" if empty else "All cells could be measured."]
    lines += ["", *empty] if empty else []
    lines += ["", "The largest distance of a peer's losses from PyTorch eager's, and in how many steps:", ""]
    lines += curve_table(rows, given.peers)
    return "\n".join(lines)


def bars(cells, peers, x, y, width, most):
    """SVG of a row: a bar for each peer, with its speed behind it."""
    parts = []
    for i, peer in enumerate(peers):
        cell, top = cells[peer], y + 13 * i
        if cell.lost:
            parts.append(f'<text x="{x + 4}" y="{top + 10}" class="small">{escape(PEERS[peer])}: not measured</text>')
            continue
        length = speed(cell, cells) / most * width
        parts.append(f'<rect x="{x}" y="{top}" width="{length:.1f}" height="11" fill="{COLOURS[peer]}"/>')
        parts.append(f'<text x="{x + length + 4:.1f}" y="{top + 10}" class="small">{speed(cell, cells):.2f}</text>')
    return parts


def svg(rows, peers):
    """A panel for each precision, in it a group of bars for each model."""
    names = list(dict.fromkeys(name for name, _ in rows))
    precisions = list(dict.fromkeys(precision for _, precision in rows))
    speeds = [speed(cell, cells) for cells in rows.values() for cell in cells.values() if not cell.lost]
    most = max(speeds, default=1)
    group, panel, width = 13 * len(peers) + 30, 290, 220
    height = 76 + group * len(names)
    whole = 20 + panel * max(len(precisions), 3)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" font-family="sans-serif">',
             "<style>text{font-size:12px;fill:#222} .small{font-size:10px} .head{font-size:14px}</style>",
             f'<rect width="{whole}" height="{height}" fill="#fff"/>']
    for i, peer in enumerate(peers):
        left, top = 20 + 170 * (i % 5), 10 + 16 * (i // 5)
        parts.append(f'<rect x="{left}" y="{top}" width="11" height="11" fill="{COLOURS[peer]}"/>')
        parts.append(f'<text x="{left + 16}" y="{top + 10}">{escape(PEERS[peer])}</text>')
    for column, precision in enumerate(precisions):
        x = 20 + panel * column
        parts.append(f'<text x="{x}" y="60" class="head">{precision}</text>')
        parts.append(f'<path d="M{x + width / most:.1f} 66V{height - 8}" stroke="#222" stroke-dasharray="3 3"/>')
        for line, name in enumerate(names):
            if (name, precision) not in rows:
                continue  # not measured yet
            y = 84 + group * line
            parts.append(f'<text x="{x}" y="{y - 5}">{escape(models.MODELS[name].title)}</text>')
            parts += bars(rows[name, precision], peers, x, y, width, most)
    return "\n".join([*parts, "</svg>"]) + "\n"


def write(path, rows, floors, given):
    """Into the file between the two marks of this kind of processor, which it adds at the end; the picture beside it."""
    kind = kind_of_processor() or cpuinfo("model name") or "unknown processor"
    begin, end = f"<!-- peers: {kind} -->\n", f"<!-- /peers: {kind} -->\n"
    page = path.read_text() if path.exists() else ""
    if begin not in page:
        page += f"\n## {kind}\n\n{begin}{end}"
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"peers.py: {path} has no line {end.strip()} behind {begin.strip()}")
    name = re.sub(r"\W+", "-", kind).strip("-")
    picture = path.with_name(f"{path.stem}-{name.lower()}.svg")
    picture.write_text(svg(rows, given.peers))
    path.write_text(before + begin + "\n" + text(rows, floors, given, picture.name) + "\n\n" + end + after)
