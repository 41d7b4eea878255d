"""Records gpt_curve.safetensors: 50 steps of a tiny GPT-2 in torch 2.11.0 on CPU, in five ways.

    python3 tests/oracles/gpt_curve.py [--compare]

fp32, fp32 with each batch in four pieces, bf16 (autocast), fp16 (autocast and GradScaler), and fp16 with a scale that
starts too large and grows often, so that updates are skipped. The model is GPT-2's: pre-norm blocks, weights stored
[in, out], tanh gelu, learned positions, tied head, no dropout; parameters carry the names of GPT-2's published
safetensors. `forward` below is the specification; README.md lists the operators.
"""

import math

import torch
import torch.nn.functional as F
from oracle import Random, run

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 256, 32, 48, 3, 4
BATCH, STEPS = 4, 50
SKIPS_SCALE = 1.3e6  # chosen so that 5 % more or less skips the same steps: no gradient is near the edge of overflow

TEXT = """\
A vernier is a second scale that slides along the first. Its marks stand a little closer together, ten of them where
the fixed scale has nine, and so only one of them can meet a mark of the other side. The eye is poor at guessing tenths
of a division, but it is very good at seeing where two lines make one. You read the whole divisions at the zero of the
slide, then look along it for the pair that meets, and the number of that pair is the tenth that you wanted.
Nothing in it is more exact than a common ruler. Both scales may be cut by the same hand with the same tool, and still
the two together say more than either of them alone. The gain lies in the difference, which is small and known.
Training in few bits is much the same. A short number is a coarse ruler: it has marks, and between the marks it says
nothing. A gradient that falls between zero and the first mark is gone. So one multiplies the loss by a large factor,
and the gradients slide up the scale to where the marks are; afterwards one divides by the same factor, in longer
numbers, and reads them off. When the factor is too large something runs off the upper end, the step is thrown away,
and the factor is halved. When all went well for a while, it is doubled. The weights themselves are kept on the fine
scale, since a thousand small steps that each round to nothing would otherwise add up to nothing.
Measure twice, cut once. Then measure the ruler.
"""


def start_weights():
    """GPT-2's: normal with deviation 0.02, smaller into the residual stream, zero biases, norms of one."""
    random = Random(5)
    residual = 0.02 / math.sqrt(2 * LAYERS)
    weights = {
        "wte.weight": random.normal((VOCABULARY, WIDTH), 0.02),
        "wpe.weight": random.normal((CONTEXT, WIDTH), 0.02),
    }
    for layer in range(LAYERS):
        h = f"h.{layer}."
        for name, inputs, outputs, deviation in (
            ("attn.c_attn", WIDTH, 3 * WIDTH, 0.02),
            ("attn.c_proj", WIDTH, WIDTH, residual),
            ("mlp.c_fc", WIDTH, 4 * WIDTH, 0.02),
            ("mlp.c_proj", 4 * WIDTH, WIDTH, residual),
        ):
            weights[h + name + ".weight"] = random.normal((inputs, outputs), deviation)
            weights[h + name + ".bias"] = torch.zeros(outputs)
        for name in ("ln_1", "ln_2"):
            weights[h + name + ".weight"] = torch.ones(WIDTH)
            weights[h + name + ".bias"] = torch.zeros(WIDTH)
    weights["ln_f.weight"] = torch.ones(WIDTH)
    weights["ln_f.bias"] = torch.zeros(WIDTH)
    return weights


def forward(w, tokens):
    """Logits [batch, time, vocabulary] of tokens [batch, time]."""
    batch, time = tokens.shape

    def linear(x, name):
        return F.linear(x, w[name + ".weight"].t(), w[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, [WIDTH], w[name + ".weight"], w[name + ".bias"], 1e-5)

    x = F.embedding(tokens, w["wte.weight"]) + F.embedding(torch.arange(time), w["wpe.weight"])
    for layer in range(LAYERS):
        h = f"h.{layer}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(WIDTH, dim=2)
        q, k, v = (y.view(batch, time, HEADS, WIDTH // HEADS).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time, WIDTH)
        x = x + linear(y, h + "attn.c_proj")
        y = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, h + "mlp.c_proj")
    return F.linear(norm(x, "ln_f"), w["wte.weight"])


def train(weights, text, positions, dtype=None, pieces=1, scale=65536.0, growth_interval=2000):
    """One curve: {"loss": ..., "grad_norms_1": ..., "final_norms": ...} and, with float16, the scaler's."""
    w = {name: value.clone().requires_grad_() for name, value in weights.items()}
    names = sorted(w)
    optimizer = torch.optim.AdamW(
        [w[name] for name in names], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_interval=growth_interval, enabled=dtype == torch.float16
    )
    curve = {"loss": [], "scale": [], "found_inf": []}
    for starts in positions:
        inputs = torch.stack([text[p : p + CONTEXT] for p in starts]).long()
        targets = torch.stack([text[p + 1 : p + 1 + CONTEXT] for p in starts]).long()
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces)):
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                logits = forward(w, x)
                loss = F.cross_entropy(logits.view(-1, VOCABULARY), y.view(-1))
            scaler.scale(loss * (1.0 / pieces)).backward()
            total += loss.item() / pieces
        scaler.unscale_(optimizer)
        if len(curve["loss"]) == 0:
            curve["grad_norms_1"] = torch.stack([w[name].grad.double().norm() for name in names])
        scaler.step(optimizer)
        curve["loss"].append(total)
        if dtype == torch.float16:
            (found_inf,) = scaler._found_inf_per_device(optimizer).values()
            curve["found_inf"].append(found_inf.item())
            scaler.update()
            curve["scale"].append(scaler.get_scale())
    curve["final_norms"] = torch.stack([w[name].detach().double().norm() for name in names])
    for key in ("loss", "scale", "found_inf"):
        curve[key] = torch.tensor(curve[key], dtype=torch.float64)
    if dtype != torch.float16:
        del curve["scale"], curve["found_inf"]
    elif curve["found_inf"][0] != 0:
        del curve["grad_norms_1"]
    return curve


def record():
    weights = start_weights()
    text = torch.tensor(list(TEXT.encode("ascii")), dtype=torch.uint8)
    positions = Random(6).integers(0, len(text) - CONTEXT, (STEPS, BATCH))
    tensors = {"text": text, "positions": positions}
    tensors.update({"start." + name: value for name, value in weights.items()})
    for name, options in (
        ("fp32", {}),
        ("fp32_pieces", {"pieces": 4}),
        ("bf16", {"dtype": torch.bfloat16}),
        ("fp16", {"dtype": torch.float16}),
        ("fp16_skips", {"dtype": torch.float16, "scale": SKIPS_SCALE, "growth_interval": 6}),
    ):
        for key, value in train(weights, text, positions, **options).items():
            tensors[f"{name}.{key}"] = value
    return tensors


if __name__ == "__main__":
    run("gpt_curve", record)
