#!/usr/bin/env python3
"""Times fine-tuning of a GPT-2 folder on a CPU: `vernier train` against Hugging Face's Trainer, in turn on the same
machine.

    ./vernier build && python3 tests/benchmarks/trainer_rival.py [--shape small|124M] [--precision fp32 bf16]
        [--threads 1] [--rounds 3] [--steps 30] [--program build/release/vernier]

Both begin with the same weights, read the same rows in the same order, and take AdamW steps at a constant rate, without
clipping and dropout. The first tenth of the steps is left out. The losses are compared too. Needs torch 2.11.0,
transformers and accelerate for Python, and a machine that does nothing else.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = {
    "small": dict(n_embd=256, n_layer=4, n_head=4, n_positions=128, vocab_size=8000, rows=8, context=128),
    "124M": dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257, rows=1, context=512),
}
RATE = 1e-4
# The losses of bf16 differ by the rounding of each operation.
ALLOWED = {"fp32": 1e-4, "bf16": 2e-2}


def make_folder(folder, shape, steps):
    import numpy
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(1)
    sizes = {key: value for key, value in shape.items() if key not in ("rows", "context")}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokens = shape["rows"] * shape["context"] * steps + 1
    numpy.random.default_rng(1).integers(0, shape["vocab_size"], tokens).astype("<u2").tofile(folder / "tokens.bin")


def vernier(program, folder, shape, precision, threads, steps):
    (folder / "run.toml").write_text(f"""
[run]
steps = {steps}
device = "cpu"
threads = {threads}
output = "out"
validate_every = 0
[task]
use = "gpt"
folder = "model"
data = ["tokens.bin"]
validation_share = 0.0
context = {shape["context"]}
batch_size = {shape["rows"]}
order = "sequential"
[precision]
use = "{precision}"
[optimizer]
use = "adamw"
learning_rate = {RATE}
weight_decay = 0.0
[checkpoint]
use = "none"
[[monitor]]
use = "csv"
""")
    subprocess.run([program, "train", "run.toml", "--quiet"], cwd=folder, check=True)
    lines = (folder / "out/metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","))) for line in lines[1:]]
    shutil.rmtree(folder / "out")
    return [float(row["step_time"]) for row in rows], [float(row["loss"]) for row in rows]


def trainer(folder, shape, precision, threads, steps):
    """In a process of its own: prints the seconds and the loss of each step."""
    import numpy
    import torch
    import transformers
    from torch.utils.data import Dataset, SequentialSampler
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<u2").astype("int64")
    context = shape["context"]

    class Rows(Dataset):
        def __len__(self):
            return (len(tokens) - 1) // context

        def __getitem__(self, index):
            window = torch.from_numpy(tokens[index * context:(index + 1) * context + 1])
            return {"input_ids": window[:-1], "shift_labels": window[1:]}

    class Times(transformers.TrainerCallback):
        def __init__(self):
            self.seconds, self.losses = [], []

        def on_step_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.begin)

        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                self.losses.append(float(logs["loss"]))

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(input_ids=inputs["input_ids"]).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), inputs["shift_labels"].flatten())

    times = Times()
    options = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=shape["rows"], max_steps=steps,
        learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0, use_cpu=True,
        bf16=precision == "bf16", optim="adamw_torch_fused", logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True, remove_unused_columns=False, seed=1)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "model", dtype=torch.float32)
    InOrder(model=model, args=options, train_dataset=Rows(), callbacks=[times]).train()
    print(json.dumps([times.seconds, times.losses]))


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--shape", choices=SHAPES, default="small")
    parse.add_argument("--precision", choices=ALLOWED, nargs="+", default=list(ALLOWED))
    parse.add_argument("--threads", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--steps", type=int, default=30)
    parse.add_argument("--program", default=str(ROOT / "build/release/vernier"))
    parse.add_argument("--trainer", help=argparse.SUPPRESS)
    given = parse.parse_args()
    shape = SHAPES[given.shape]
    if given.trainer:
        return trainer(pathlib.Path(given.trainer), shape, given.precision[0], given.threads, given.steps)
    tokens, program = shape["rows"] * shape["context"], os.path.abspath(given.program)
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_folder(folder, shape, given.steps)
        for precision in given.precision:
            ours, theirs, distance = [], [], 0.0
            for _ in range(given.rounds):
                seconds, losses = vernier(program, folder, shape, precision, given.threads, given.steps)
                rival = [sys.executable, os.path.abspath(__file__), f"--trainer={folder}", f"--shape={given.shape}",
                         f"--threads={given.threads}", f"--steps={given.steps}", "--precision", precision]
                done = subprocess.run(rival, stdout=subprocess.PIPE, text=True, check=True,
                                      env=dict(os.environ, OMP_NUM_THREADS=str(given.threads), TQDM_DISABLE="1"))
                their_seconds, their_losses = json.loads(done.stdout.splitlines()[-1])
                skip = given.steps // 10
                ours.append(statistics.median(seconds[skip:]))
                theirs.append(statistics.median(their_seconds[skip:]))
                # Their log has four decimals.
                distance = max(distance, max(abs(a - b) for a, b in zip(losses, their_losses)))
            ratio = statistics.median(b / a for a, b in zip(ours, theirs))
            print(f"{given.shape} {precision}: vernier {tokens / statistics.median(ours):8.0f} tokens/s, Trainer "
                  f"{tokens / statistics.median(theirs):8.0f}, {ratio:.2f} times as fast; losses differ by "
                  f"{distance:.1e} (allowed {ALLOWED[precision]:.0e})")
            missed = missed or distance > ALLOWED[precision]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
