"""Trains architectures of other people with task/graph beside PyTorch, and compares all that a user sees.

    python3 tests/zoo/zoo.py BUILD_FOLDER [--write] [NAME...]

zoo.tsv has a row for each: how it is made, what it takes and predicts, and a part of the refusal, where one is right.
Needs the packages of docs/reference/zoo.md, and exits with 77 without them. --write puts what it found into the table
of that page, and leaves the rows of other models as they are. Each model is small and has random weights. It is
exported by save() of plugins/task/graph/export.py, and trains five steps of AdamW on the same rows in Python and by
`vernier train`, with one thread. What must hold:

- The losses are equal to the bit: to those of eager mode, or of the exported program in Python ("=" and "(=)"). With
  Vernier's own kernels, which a run has by default, they differ by at most 1e-4.
- The weights of `export --format safetensors` go into load_state_dict(), and those of `--format pt2` are the same.
- With them `evaluate` has PyTorch's loss and `predict` PyTorch's predictions of new rows, within 1e-5.
- onnxruntime gives the outputs of `export --format onnx` within 1e-5, for batches of 1 and 5 samples.
"""

import argparse
import copy
import csv
import importlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = ("mambapy", "onnxruntime", "rtdl", "segmentation_models_pytorch", "timm", "torch", "torchvision",
            "transformers", "vit_pytorch", "x_transformers")  # fmt: skip
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
warnings.filterwarnings("ignore")
try:
    import numpy
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    from torch.utils import _pytree as pytree

    NAMES = {name: importlib.import_module(name) for name in PACKAGES} | {"importlib": importlib}
    NAMES["mambapy"] = importlib.import_module("mambapy.mamba")
except ImportError as error:
    print(f"left out: {error}; docs/reference/zoo.md has the line of pip")
    sys.exit(77)
spec = importlib.util.spec_from_file_location("export", HERE.parents[1] / "plugins/task/graph/export.py")
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)

PAGE, HEAD = HERE.parents[1] / "docs/reference/zoo.md", "| architecture | made by |"
TRAINED, NEW, BATCH, STEPS = 20, 5, 4, 5
LOSSES = {
    "cross_entropy": F.cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
}
RUN = """
[run]
steps = {steps}
threads = 1
matmul = "plain"
fused = false
output = "run"
validate_every = 0
[task]
use = "graph"
model = "model.pt2"
inputs = {sources}
target = "train.npz:y"
output = "{output}"
loss = "{loss}"
validation_share = 0
order = "sequential"
batch_size = {batch}
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
[[monitor]]
use = "jsonl"
"""


def normal(*shape):
    return torch.randn(TRAINED + NEW, *shape)


def tokens(below, *shape):
    return torch.randint(0, below, (TRAINED + NEW, *shape))


def ones(*shape):
    return torch.ones(TRAINED + NEW, *shape, dtype=torch.long)


def config(kind, **options):
    """A model of transformers by its class, small and without a cache."""
    common = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "max_position_embeddings": 64, "num_labels": 3, "image_size": 32,
              "patch_size": 8, "use_cache": False}  # fmt: skip
    model = getattr(NAMES["transformers"], kind)
    return model(model.config_class(**common | options))


def arguments(*args, **kwargs):
    return args, kwargs


MAKERS = {
    "normal": normal, "tokens": tokens, "ones": ones, "config": config, "arguments": arguments,
    "classes": lambda below, *shape: ("cross_entropy", tokens(below, *shape)),
    "labels": lambda *shape: ("bce", tokens(2, *shape).float()),
    "numbers": lambda *shape: ("mse", normal(*shape)),
}  # fmt: skip


class Row:
    """A row of zoo.tsv as a model, its inputs and its targets."""

    def __init__(self, row):
        def made(text):
            return eval(text, NAMES | MAKERS)  # noqa: S307, the list is ours

        torch.manual_seed(11)
        self.model = made(row["constructor"]).train()
        self.args, self.kwargs = made(f"arguments({row['takes']})")
        self.loss, self.target = made(row["predicts"])
        self.output = row["output"]

    def part(self, rows):
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[rows], (self.args, self.kwargs))

    def sources(self, rows):
        return {f"x{place}": tensor.numpy() for place, tensor in enumerate(export.tensors_in(self.part(rows)))}

    def answer(self, model, rows):
        """The output that counts."""
        args, kwargs = self.part(rows)
        output = model(*args, **kwargs)
        for part in self.output.split(".") if self.output else ():
            output = output[part] if isinstance(output, dict) else getattr(output, part)
        return output

    def loss_of(self, output, rows):
        target = self.target[rows]
        if self.loss == "cross_entropy" and output.dim() == target.dim() + 1 and output.shape[2:] != target.shape[1:]:
            output = output.movedim(-1, 1)
        if self.loss != "cross_entropy":
            output = output.reshape(target.shape)
        return LOSSES[self.loss](output, target)

    def losses_of(self, model):
        torch.manual_seed(1)
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True), []
        for step in range(STEPS):
            rows = slice(step * BATCH, step * BATCH + BATCH)
            loss = self.loss_of(self.answer(model, rows), rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


class Trial:
    def __init__(self, build, folder, row):
        self.build, self.folder, self.row = build, folder, Row(row)
        self.new = slice(TRAINED, TRAINED + NEW)

    def vernier(self, *words):
        done = subprocess.run([self.build / "vernier", *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]}: {(done.stderr.strip() or 'it crashed').splitlines()[-1]}")

    def export(self):
        args, kwargs = self.row.part(slice(0, 4))
        export.save(copy.deepcopy(self.row.model), args, self.folder / "model.pt2", kwargs=kwargs)

    def trains(self):
        """Returns "=" where losses are those of eager mode, "(=)" where they are those of the exported program."""
        row = self.row
        for name, rows in (("train.npz", slice(0, TRAINED)), ("new.npz", self.new)):
            numpy.savez(self.folder / name, y=row.target[rows].numpy(), **row.sources(rows))
        self.names = list(row.sources(self.new))
        wanted = row.losses_of(copy.deepcopy(row.model))
        text = RUN.format(steps=STEPS, batch=BATCH, loss=row.loss, output=row.output if self.has_several() else "",
                          sources=json.dumps([f"train.npz:{name}" for name in self.names]))  # fmt: skip
        (self.folder / "run.toml").write_text(text)
        losses = self.losses_by_vernier("run")
        fused = self.losses_by_vernier("fused", "--set", "run.matmul=auto", "--set", "run.fused=true")
        worst = max(abs(a - b) / max(1, abs(b)) for a, b in zip(fused, losses, strict=True))
        if not worst <= 1e-4:
            raise RuntimeError(f"train: with the kernels of Vernier losses are {fused}, and with LibTorch's {losses}")
        if losses == wanted:
            return "="
        other = row.losses_of(torch.export.load(self.folder / "model.pt2").module())
        if losses == other:
            return "(=)"
        raise RuntimeError(f"train: losses are {losses}, Python's are {wanted}, and model.pt2's are {other}")

    def losses_by_vernier(self, folder, *settings):
        self.vernier("train", "run.toml", "--set", f"run.output={folder}", *settings)
        lines = (self.folder / folder / "losses.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]

    def has_several(self):
        return len(json.loads((self.folder / "model.json").read_text())["outputs"]) > 1

    def returns(self):
        self.vernier("export", "run", "--format", "safetensors", "--output", "out.safetensors")
        self.trained = copy.deepcopy(self.row.model).eval()
        self.trained.load_state_dict(load_file(self.folder / "out.safetensors"))
        self.vernier("export", "run", "--format", "pt2", "--output", "out.pt2")
        state, again = self.trained.state_dict(), torch.export.load(self.folder / "out.pt2").state_dict
        if other := [name for name, value in again.items() if not torch.equal(value, state[name])]:
            raise RuntimeError(f"export: {other[0]} differs between safetensors and pt2")
        with torch.no_grad():
            self.wanted = self.row.answer(self.trained, self.new)

    def evaluates(self):
        sources = json.dumps([f"new.npz:{name}" for name in self.names])
        more = ["--set", f"task.inputs={sources}", "--set", 'task.target="new.npz:y"']
        self.vernier("evaluate", "run", *more)
        columns = json.loads((self.folder / "run/evaluation.json").read_text())["metrics"]
        loss = next(iter(columns.values()))["validation_loss"]
        wanted = self.row.loss_of(self.wanted, self.new).item()
        return self.within("evaluate", abs(loss - wanted) / max(1, abs(wanted)))

    def predicts(self):
        more = [] if self.row.loss == "mse" else ["--probabilities"]
        self.vernier("predict", "run", "--input", "new.npz", *more, "--output", "out.npz")
        with numpy.load(self.folder / "out.npz") as file:
            arrays = {name: torch.from_numpy(file[name].astype("float64")) for name in file.files}
        wanted = self.wanted.double()
        if self.row.loss == "cross_entropy":
            wanted = wanted.movedim(-1, 1) if wanted.shape[2:] != self.row.target.shape[1:] else wanted
            wanted = wanted.softmax(1)
        elif self.row.loss == "bce":
            wanted = wanted.sigmoid()
        several = [value for name, value in arrays.items() if name.startswith("probability_")]
        found = torch.stack(several, 1) if several else arrays.get("probability", list(arrays.values())[0])
        # A probability moves by as much as its logit.
        scale = max(1, self.wanted.abs().max().item())
        return self.within("predict", (found.reshape(wanted.shape) - wanted).abs().max().item() / scale)

    def onnx(self):
        self.vernier("export", "run", "--format", "onnx", "--output", "out.onnx")
        session = NAMES["onnxruntime"].InferenceSession(self.folder / "out.onnx", providers=["CPUExecutionProvider"])
        worst = 0.0
        for samples in (1, NEW):
            rows = slice(TRAINED, TRAINED + samples)
            with torch.no_grad():
                wanted = self.row.answer(self.trained, rows)
            given = dict(zip([each.name for each in session.get_inputs()], self.row.sources(rows).values()))
            difference = torch.tensor(session.run(None, given)[0]) - wanted
            worst = max(worst, difference.abs().max().item() / max(1, wanted.abs().max().item()))
        return self.within("onnx", worst)

    @staticmethod
    def within(name, difference):
        if not difference <= 1e-5:
            raise RuntimeError(f"{name}: differs from PyTorch by {difference:.1e}")
        return f"{difference:.0e}" if difference else "="


def tried(build, row):
    """Returns the cells of a row of the table, and what went wrong."""
    cells, failed = {}, ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            trial = Trial(build, pathlib.Path(folder), row)
            trial.export()
            cells["losses"] = trial.trains()
            trial.returns()
            cells |= {"evaluate": trial.evaluates(), "predict": trial.predicts(), "onnx": trial.onnx()}
        except (Exception, SystemExit) as error:
            failed = re.sub(r"\s+", " ", str(error)).replace(folder + "/", "") or repr(error)
    return cells, failed


def line_of(row, cells, failed):
    """A row of the page's table."""
    maker = re.match(r"(?:importlib.import_module\()?\"?(\w+)", row["constructor"])[1]
    maker = "transformers" if maker == "config" else maker
    shown = [cells.get(name, "") for name in ("losses", "evaluate", "predict", "onnx")]
    if failed:
        shown[shown.index("")] = row["refused"] if row["refused"] and row["refused"] in failed else "fails"
    return f"| {row['name']} | {maker} | {row['takes']} | {row['predicts']} | {' | '.join(shown)} |"


def write_page(rows, lines):
    """Puts lines by name into the table of the page, in the order of the list."""
    text = PAGE.read_text()
    begin = text.index(HEAD)
    head, rule, *table = text[begin:].split("\n\n")[0].splitlines()
    known = {line.split(" | ")[0].removeprefix("| "): line for line in table} | lines
    table = [known[row["name"]] for row in rows if row["name"] in known]
    rest = text[begin:].partition("\n\n")
    PAGE.write_text(text[:begin] + "\n".join([head, rule, *table]) + (rest[1] + rest[2] or "\n"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    words = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    with (HERE / "zoo.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    chosen = [row for row in rows if not words.names or row["name"] in words.names]
    right, lines = 0, {}
    for row in chosen:
        begin = time.monotonic()
        cells, failed = tried(words.build.resolve(), row)
        is_right = row["refused"] in failed if row["refused"] else not failed
        right += is_right
        shown = " ".join(f"{key} {value}" for key, value in cells.items())
        print(f"{'ok  ' if is_right else 'FAIL'} {row['name']:16} {time.monotonic() - begin:4.0f} s  {shown} {failed}",
              flush=True)  # fmt: skip
        lines[row["name"]] = line_of(row, cells, failed)
        if words.write:
            write_page(rows, lines)
    print(f"{right} of {len(chosen)} are as they must be")
    sys.exit(right < len(chosen))


if __name__ == "__main__":
    main()
