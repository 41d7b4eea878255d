"""JAX as a peer of peers.py: jax_peer.py PEER MODEL FOLDER PRECISION THREADS

The networks of models.py in jax.numpy, with their start weights. The whole step, update and loss scaling included, is
one jitted function whose state is donated. Of the peer jax_loop the loop over the steps is inside such a function too.
Answers as python_peer.py does.

bf16 and fp16: products, convolutions and attention take operands in 16 bits; norms, losses and the state of LSTM cells
are in float32. fp16 has the loss scale of torch.amp.GradScaler.
"""
import functools
import itertools
import json
import math
import os
import pathlib
import sys
import time

peer, model_name, folder, precision, threads = *sys.argv[1:3], pathlib.Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print is not an answer
os.environ["JAX_PLATFORMS"] = "cpu"
cores = sorted(os.sched_getaffinity(0))
if threads < len(cores):  # XLA has as many threads as it may use cores
    os.sched_setaffinity(0, cores[:threads])
if threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

now = time.process_time if os.environ.get("PEERS_CLOCK") == "cpu" else time.perf_counter
try:
    import jax
    import jax.numpy as np
    import numpy
    from safetensors.numpy import load_file
except ImportError as missing:
    sys.exit(f"{missing}; run: pip install jax[cpu] safetensors")

DTYPE = {"fp32": np.float32, "bf16": np.bfloat16, "fp16": np.float16}[precision]
RATE, DECAY, EPSILON, BETAS = 3e-4, 0.01, 1e-8, (0.9, 0.999)
MOST = 200  # steps of a call of train_loop()
SIZES = {"mlp": 128, "cnn": 64, "lstm": 32, "gpt_small": 16, "gpt": 8}


def lowered(*arrays):
    return [array.astype(DTYPE) for array in arrays]


def linear(x, weight, bias=None):
    x, weight = lowered(x, weight)
    y = x @ weight.T
    return y if bias is None else y + bias.astype(DTYPE)


def mlp(w, x):
    x = jax.nn.relu(linear(x, w["0.weight"], w["0.bias"]))
    x = jax.nn.relu(linear(x, w["2.weight"], w["2.bias"]))
    return linear(x, w["4.weight"], w["4.bias"])


def cnn(w, x):
    def layer(x, name):
        x, kernel = lowered(x, w[name + ".weight"])
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        y = jax.nn.relu(y + w[name + ".bias"].astype(DTYPE)[:, None, None])
        return jax.lax.reduce_window(y, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    x = layer(layer(x, "conv1"), "conv2")
    return linear(x.reshape(x.shape[0], -1), w["head.weight"], w["head.bias"])


def lstm(w, x):
    inputs = linear(x, w["lstm.weight_ih_l0"], w["lstm.bias_ih_l0"] + w["lstm.bias_hh_l0"])  # of all times at once

    def cell(state, gates):
        h, c = state
        gates = gates.astype(np.float32) + linear(h, w["lstm.weight_hh_l0"]).astype(np.float32)
        i, f, g, o = np.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * np.tanh(g)
        return (jax.nn.sigmoid(o) * np.tanh(c), c), None

    nothing = np.zeros((x.shape[0], w["lstm.weight_hh_l0"].shape[1]))
    (h, _), _ = jax.lax.scan(cell, (nothing, nothing), inputs.swapaxes(0, 1))
    return linear(h, w["head.weight"], w["head.bias"])


def norm(w, name, x):
    x = x.astype(np.float32)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def gpt(w, tokens):
    heads, time_ = 4, tokens.shape[1]
    layers = sum(name.endswith(".ln_1.weight") for name in w)
    causal = np.tril(np.ones((time_, time_), bool))
    x = w["wte.weight"][tokens] + w["wpe.weight"][:time_]

    def conv1d(x, name):
        return linear(x, w[name + ".weight"].T, w[name + ".bias"])

    for i in range(layers):
        name = f"h.{i}."
        parts = np.split(conv1d(norm(w, name + "ln_1", x), name + "attn.c_attn"), 3, axis=2)
        q, k, v = (part.reshape(*part.shape[:2], heads, -1).swapaxes(1, 2) for part in parts)
        scores = (q @ k.swapaxes(2, 3)).astype(np.float32) / math.sqrt(q.shape[-1])
        weights = jax.nn.softmax(np.where(causal, scores, -np.inf), axis=-1).astype(DTYPE)
        y = (weights @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + conv1d(y, name + "attn.c_proj")
        y = jax.nn.gelu(conv1d(norm(w, name + "ln_2", x), name + "mlp.c_fc"), approximate=True)
        x = x + conv1d(y, name + "mlp.c_proj")
    return linear(norm(w, "ln_f", x), w["wte.weight"])


def loss_of(weights, x, y, scale):
    network = {"mlp": mlp, "cnn": cnn, "lstm": lstm}.get(model_name, gpt)
    logits = network(weights, x).astype(np.float32)
    chosen = np.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1)
    loss = -chosen.mean()
    return loss * scale, loss


def adamw(w, g, m, v, step):
    m = BETAS[0] * m + (1 - BETAS[0]) * g
    v = BETAS[1] * v + (1 - BETAS[1]) * g * g
    root = np.sqrt(v / (1 - BETAS[1] ** step)) + EPSILON
    return w * (1 - RATE * DECAY) - RATE / (1 - BETAS[0] ** step) * m / root, m, v


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, x, y):
    weights, averages, squares, step, scale, good = state
    (_, loss), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, x, y, scale)
    gradients = {name: g / scale for name, g in gradients.items()}
    is_finite = np.array(True)
    if precision == "fp16":
        is_finite = np.stack([np.isfinite(g).all() for g in gradients.values()]).all()
    step = step + is_finite
    new = {name: adamw(weights[name], gradients[name], averages[name], squares[name], step) for name in weights}
    old = {name: (weights[name], averages[name], squares[name]) for name in weights}
    if precision == "fp16":
        new = jax.tree.map(lambda a, b: np.where(is_finite, a, b), new, old)
        good = np.where(is_finite, good + 1, 0)
        scale = np.where(is_finite, np.where(good == 2000, scale * 2, scale), scale / 2)
        good = np.where(good == 2000, 0, good)
    parts = [{name: values[i] for name, values in new.items()} for i in range(3)]
    return (*parts, step, scale, good), loss


@functools.partial(jax.jit, donate_argnums=0)
def train_loop(state, inputs, targets, first, steps):
    """Trains at most MOST steps on batches, beginning with batch `first`, and returns a loss for each."""

    def step(i, carried):
        state, losses = carried
        at = (first + i) % len(inputs)
        state, loss = train_step(state, inputs[at], targets[at])
        return state, losses.at[i].set(loss)

    return jax.lax.fori_loop(0, steps, step, (state, np.zeros(MOST)))


def main():
    weights = {name: np.asarray(value) for name, value in load_file(folder / "start.safetensors").items()}
    zeros = [{name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2)]
    scale = np.float32(65536.0 if precision == "fp16" else 1.0)
    state = (weights, *zeros, np.float32(0), scale, np.int32(0))
    inputs, targets = numpy.load(folder / "inputs.npy"), numpy.load(folder / "targets.npy").astype(numpy.int32)
    if inputs.dtype == numpy.int64:
        inputs = inputs.astype(numpy.int32)
    size = SIZES[model_name]
    inputs, targets = (np.asarray(each.reshape(-1, size, *each.shape[1:])) for each in (inputs, targets))
    batches = list(zip(inputs, targets))
    if peer == "jax_loop":
        train_loop.lower(state, inputs, targets, 0, 1).compile()
    else:
        train_step.lower(state, *batches[0]).compile()
    answers.write(json.dumps({"ready": True}) + "\n")
    endless, done = itertools.cycle(batches), 0
    for line in sys.stdin:
        losses, start, steps = [], now(), int(line)
        if peer == "jax_loop":
            for part in range(0, steps, MOST):
                count = min(MOST, steps - part)
                state, some = train_loop(state, inputs, targets, (done + part) % len(batches), count)
                losses += list(some[:count])
        else:
            for x, y in itertools.islice(endless, steps):
                state, loss = train_step(state, x, y)
                losses.append(loss)
        jax.block_until_ready(state)
        seconds = now() - start
        done += steps
        answers.write(json.dumps({"seconds": seconds, "losses": [float(loss) for loss in losses]}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
