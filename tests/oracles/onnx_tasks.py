"""Exports a short run of each ready task as ONNX and .pt2, and compares the two: onnxruntime with torch.export.load.

    python3 tests/oracles/onnx_tasks.py BUILD_FOLDER [TASK...]

Needs torch 2.11 and onnxruntime, and checks batches of 1 and 7 samples, within 1e-5. It records nothing. The .pt2 is also
exported again by torch.export.export in Python, and must then give the same bits. The ONNX file of images has the colours last,
and that of a table takes its columns: tests/plugins/task/tabular_onnx_test.cpp compares it with the reader.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy
import onnxruntime
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = f"""use = "llama"
folder = "{ROOT}/examples/formats/llama"
weights = "random"
data = ["corpus.bin"]
token_type = "uint8"
context = 16"""
SEQUENCE = 'use = "sequence"\nkind = "forecast"\ndata = "data/waves.csv"\ncontext = 48\nhorizon = 6\nmodel = "{}"'
TEXT = 'use = "text"\ndata = "data/texts/{}"\ntext = {}\nlength = 32\n{}'
TASKS = {
    "mlp": 'use = "mlp"',
    "gpt": f'use = "gpt"\ndata = ["{ROOT}/README.md"]\nlayers = 2\nheads = 4\nwidth = 32\ncontext = 16',
    "llama": LLAMA,
    "lstm": SEQUENCE.format("lstm"),
    "gru": SEQUENCE.format("gru"),
    "transformer": SEQUENCE.format("transformer"),
    "text": TEXT.format("adverts.csv", '["text"]', 'target = "label"'),
    "text_number": TEXT.format("snippets.jsonl", '["title", "snippet"]', 'target = "clicks"\nkind = "regression"'),
    "tabular": 'use = "tabular"\ndata = "flats.csv"\ntarget = "rent"',
    "cnn": 'use = "images"\nimages = "data/shapes/train"\nchannels = 4',
    "resnet": 'use = "images"\nimages = "data/shapes/train"\nmodel = "resnet"\nchannels = 4',
    "clips": 'use = "images"\nimages = "data/clips/train"\nframes = 4\nchannels = 4',
}
RUN = """
[run]
steps = 3
output = "run"
validate_every = 0
[task]
{}
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
"""


def make_data(folder):
    for words in ("waves.py data/waves.csv", "texts.py data/texts", "shapes.py data/shapes", "clips.py data/clips"):
        subprocess.run([sys.executable, *f"{ROOT}/examples/data/{words}".split()], cwd=folder, check=True)
    flats = subprocess.run(["sh", f"{ROOT}/examples/data/flats.sh"], capture_output=True, check=True).stdout
    (folder / "flats.csv").write_bytes(flats)
    (folder / "corpus.bin").write_bytes((ROOT / "README.md").read_bytes())


def inputs_of(program, samples):
    """Random inputs in the shapes that the program was written for."""
    generator, inputs = torch.Generator().manual_seed(samples), []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in program.graph_signature.user_inputs:
            continue
        shape, dtype = [samples, *node.meta["val"].shape[1:]], node.meta["val"].dtype
        below = {torch.uint8: 256, torch.int64: 3}.get(dtype)
        if below:
            inputs.append(torch.randint(0, below, shape, generator=generator, dtype=dtype))
        else:
            inputs.append(torch.randn(shape, generator=generator, dtype=dtype))
    return inputs


def classes_of(session):
    description = session.get_modelmeta().custom_metadata_map.get("description", "{}")
    return json.loads(description).get("classes")


def trial(build, folder, task):
    """Returns the largest difference of ONNX, None for a table, and whether the bits stay."""

    def vernier(*words):
        done = subprocess.run([build / "vernier", *words], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])

    for name in ("run", "model.pt2", "model.onnx", "model.pt2.json", "model.onnx.json"):
        subprocess.run(["rm", "-rf", folder / name], check=True)
    (folder / "run.toml").write_text(RUN.format(task))
    vernier("train", "run.toml")
    vernier("export", "run", "--format", "pt2", "--output", "model.pt2")
    vernier("export", "run", "--format", "onnx", "--output", "model.onnx")
    program = torch.export.load(folder / "model.pt2")
    module = program.module()
    example = tuple(inputs_of(program, 3))
    dynamic = tuple({0: torch.export.Dim.AUTO} for _ in example)
    again = torch.export.export(module, example, dynamic_shapes=dynamic).module()
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    worst, is_same = 0.0, True
    with torch.no_grad():
        for samples in (1, 7):
            inputs, more = inputs_of(program, samples), inputs_of(program, samples + 1)
            wanted = module(*inputs)
            is_same = is_same and torch.equal(again(*more), module(*more))
            if task.startswith('use = "tabular"'):
                worst = None
                continue
            if task.startswith('use = "images"'):
                inputs = [inputs[0].movedim(-3, -1).contiguous()]
            given = {one.name: each.numpy() for one, each in zip(session.get_inputs(), inputs)}
            output, *words = session.run(None, given)
            if classes := classes_of(session):
                assert list(words[0]) == [classes[place] for place in output.argmax(1)]
            assert output.shape == tuple(wanted.shape), f"{output.shape}, not {tuple(wanted.shape)}"
            difference = numpy.abs(output - wanted.numpy()).max() / max(1.0, wanted.abs().max().item())
            worst = max(worst, float(difference))
    return worst, is_same


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    build, failed = pathlib.Path(sys.argv[1]).resolve(), False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        make_data(folder)
        for name in sys.argv[2:] or TASKS:
            try:
                worst, is_same = trial(build, folder, TASKS[name])
                failed |= not is_same or not (worst is None or worst <= 1e-5)
                print(f"{name:14} ONNX {'takes columns' if worst is None else f'{worst:.0e}'}; exported again: "
                      f"{'=' if is_same else 'other bits'}", flush=True)  # fmt: skip
            except Exception as error:
                failed = True
                print(f"{name:14} {str(error)[:200]}", flush=True)
    sys.exit(failed)


main()
