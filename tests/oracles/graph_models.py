"""Trains models of PyTorch, torchvision and transformers with task/graph, and compares all with Python.

    python3 tests/oracles/graph_models.py BUILD_FOLDER [MODEL...]

Needs torch 2.11, torchvision 0.26, transformers 5, safetensors and onnxruntime. It checks, and records nothing. Each model
is exported by plugins/task/graph/export.py. It trains 50 steps in Python's eager mode and by `vernier train`, in float32
and in bf16, with dropout, batches of 8 and of 4 samples, AdamW and one thread. Losses must be equal to the bit; where
eager mode takes another way than the export, to those of the exported program in Python. Then the trained weights go back:
safetensors into load_state_dict(), .pt2 into torch.export.load(), to the bit; ONNX into onnxruntime, within 1e-5 for
batches of 1 and 7 samples.
"""

import copy
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import onnxruntime
import torch
import torch.nn.functional as F
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("export", HERE.parents[1] / "plugins/task/graph/export.py")
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)
SAMPLES, BATCH, STEPS = 60, 8, 50
torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)
warnings.filterwarnings("ignore")


class Bag(nn.Module):
    """Two inputs, and a dict of outputs."""

    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8), nn.Linear(13, 3)

    def forward(self, x, words):
        return {"features": x, "logits": self.head(torch.cat([x, self.bag(words)], 1))}


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = kind(5, 16, num_layers=2, dropout=0.1, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU())
        self.up, self.last = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(19, 3, 1)

    def forward(self, x):
        low = self.down(x)
        near = F.interpolate(low, scale_factor=2.0, mode="nearest")
        smooth = F.interpolate(self.up(low), size=x.shape[-2:], mode="bilinear")
        return self.last(torch.cat([x, near, smooth], 1)).mean((2, 3))


class Published(nn.Module):
    """A model of transformers: logits of a text, or of its last token, or the loss of a language model."""

    def __init__(self, kind, takes="input_ids", gives="logits", **options):
        super().__init__()
        common = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "max_position_embeddings": 64, "num_labels": 3}  # fmt: skip
        model = getattr(transformers, kind)
        self.model = model(model.config_class(**common | options))
        self.takes, self.gives = takes, gives

    def forward(self, tokens, mask=None):
        more = {"use_cache": False} if "LM" in type(self.model).__name__ else {}
        if mask is not None:
            more["attention_mask"] = mask
        if self.gives == "loss":
            return self.model(**{self.takes: tokens}, labels=tokens, **more).loss
        logits = self.model(**{self.takes: tokens}, **more).logits
        return logits if logits.dim() == 2 else logits[:, -1]


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
        self.model, self.head = transformers.T5EncoderModel(config), nn.Linear(32, 3)

    def forward(self, tokens):
        return self.head(self.model(input_ids=tokens).last_hidden_state.mean(1))


def plain(*layers):
    return lambda: nn.Sequential(*[layer() for layer in layers])


def vision(name, **options):
    return lambda: getattr(torchvision.models, name)(num_classes=3, **options)


def numbers(*shape):
    return lambda: [torch.randn(SAMPLES, *shape)]


def tokens():
    return [torch.randint(0, 50, (SAMPLES, 12))]


def masked():
    lengths = torch.randint(3, 13, (SAMPLES, 1))
    return tokens() + [(torch.arange(12)[None] < lengths).long()]


images, shared = numbers(3, 32, 32), {"num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "mlp": (plain(lambda: nn.Linear(12, 64), nn.GELU, nn.Dropout, lambda: nn.Linear(64, 3)), numbers(12)),
    "cnn": (plain(lambda: nn.Conv2d(3, 8, 3), lambda: nn.BatchNorm2d(8), nn.ReLU, lambda: nn.MaxPool2d(2),
                  lambda: nn.AdaptiveAvgPool2d(3), nn.Flatten, lambda: nn.Linear(72, 3)), images),  # fmt: skip
    "lstm": (lambda: Recurrent(nn.LSTM), numbers(7, 5)),
    "gru": (lambda: Recurrent(nn.GRU), numbers(7, 5)),
    "encoder": (Encoder, numbers(6, 16)),
    "unet": (Unet, numbers(3, 16, 16)),
    "bag": (Bag, lambda: numbers(5)() + [torch.randint(0, 20, (SAMPLES, 4))]),
    "resnet18": (vision("resnet18"), images),
    "vit": (lambda: torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64, dropout=0.1, num_classes=3), images),
    "mobilenet": (vision("mobilenet_v3_small"), images),
    "efficientnet": (vision("efficientnet_b0"), images),
    "convnext": (lambda: torchvision.models.ConvNeXt(
        [torchvision.models.convnext.CNBlockConfig(16, 32, 2), torchvision.models.convnext.CNBlockConfig(32, None, 2)],
        stochastic_depth_prob=0.2, num_classes=3), images),  # fmt: skip
    "swin": (lambda: torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=3), images),
    "gpt": (lambda: Published("GPT2LMHeadModel", gives="loss", n_embd=32, n_layer=2, n_head=4), tokens),
    "gpt_logits": (lambda: Published("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4), tokens),
    "llama": (lambda: Published("LlamaForCausalLM", gives="loss", num_key_value_heads=2), tokens),
    "llama_eager": (lambda: Published("LlamaForCausalLM", gives="loss", num_key_value_heads=2,
                                      attn_implementation="eager"), tokens),  # fmt: skip
    "llama_logits": (lambda: Published("LlamaForCausalLM", num_key_value_heads=2), tokens),
    "qwen3": (lambda: Published("Qwen3ForCausalLM", **shared), tokens),
    "gemma2": (lambda: Published("Gemma2ForCausalLM", **shared), tokens),
    "phi": (lambda: Published("PhiForCausalLM"), tokens),
    "bert": (lambda: Published("BertForSequenceClassification"), masked),
    "roberta": (lambda: Published("RobertaForSequenceClassification"), tokens),
    "t5": (T5, tokens),
    "hf_vit": (lambda: Published("ViTForImageClassification", takes="pixel_values", image_size=32, patch_size=8), images),
}
RUN = """
[run]
steps = {steps}
threads = 1
matmul = "plain"
fused = false
output = "{precision}"
validate_every = 0
[task]
use = "graph"
model = "model.pt2"
inputs = {sources}
{target}
loss = "{loss}"
validation_share = 0
order = "sequential"
batch_size = {batch}
[precision]
use = "{precision}"
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
[[monitor]]
use = "jsonl"
"""


def logits_of(output):
    return output["logits"] if isinstance(output, dict) else output


def losses_of(model, inputs, target, is_bf16):
    """Trains as `vernier train` does."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    losses, place = [], 0
    for _ in range(STEPS):
        rows = slice(place, min(place + BATCH, SAMPLES))
        place = rows.stop % SAMPLES
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            output = logits_of(model(*[each[rows] for each in inputs]))
            loss = output if output.dim() == 0 else F.cross_entropy(output, target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def exported_module(file):
    program = torch.export.load(file)
    for node in list(program.graph_module.graph.nodes):  # what it asserts of dtypes is not so under autocast
        if "_assert_tensor_metadata" in str(node.target):
            program.graph_module.graph.erase_node(node)
    program.graph_module.recompile()
    return program.module()


class Trial:
    def __init__(self, build, folder, name):
        self.build, self.folder = build, folder
        kind, make = MODELS[name]
        torch.manual_seed(11)
        self.model, self.inputs = kind().train(), make()
        self.target = torch.randint(0, 3, (SAMPLES,))
        data = {f"x{place}": each for place, each in enumerate(self.inputs)}
        save_file(data | {"y": self.target}, folder / "data.safetensors")
        export.save(copy.deepcopy(self.model), [each[:4] for each in self.inputs], folder / "model.pt2")

    def vernier(self, *words):
        done = subprocess.run([self.build / "vernier", *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])

    def trains(self, precision):
        """Returns "=" where losses are those of eager mode, "(=)" where they are those of the exported program."""
        is_bf16, model = precision == "bf16", copy.deepcopy(self.model)
        wanted = losses_of(model, self.inputs, self.target, is_bf16)
        if not is_bf16:
            self.trained = model.eval()
        self.has_loss = getattr(self.model, "gives", "") == "loss"
        sources = [f"data.safetensors:x{place}" for place in range(len(self.inputs))]
        lines = [] if self.has_loss else ['target = "data.safetensors:y"']
        lines += ['output = "logits"'] if isinstance(self.model, Bag) else []
        text = RUN.format(steps=STEPS, batch=BATCH, precision=precision, sources=json.dumps(sources),
                          target="\n".join(lines), loss="output" if self.has_loss else "cross_entropy")  # fmt: skip
        (self.folder / f"{precision}.toml").write_text(text)
        self.vernier("train", f"{precision}.toml")
        lines = (self.folder / precision / "losses.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
        if losses == wanted:
            return "="
        other = losses_of(exported_module(self.folder / "model.pt2"), self.inputs, self.target, is_bf16)
        return "(=)" if losses == other else f"{max(abs(a - b) for a, b in zip(losses, wanted)):.1e}"

    def returns(self):
        self.vernier("export", "fp32", "--format", "safetensors", "--output", "out.safetensors")
        fresh = copy.deepcopy(self.model)
        fresh.load_state_dict(load_file(self.folder / "out.safetensors"))
        self.vernier("export", "fp32", "--format", "pt2", "--output", "out.pt2")
        again = torch.export.load(self.folder / "out.pt2").state_dict
        state = self.trained.state_dict()
        same = all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
        return "=" if same and all(torch.equal(value, state[name]) for name, value in again.items()) else "other"

    def onnx(self):
        if self.has_loss:
            return "loss"
        self.vernier("export", "fp32", "--format", "onnx", "--output", "out.onnx")
        session = onnxruntime.InferenceSession(self.folder / "out.onnx", providers=["CPUExecutionProvider"])
        worst = 0.0
        for samples in (1, 7):
            with torch.no_grad():
                wanted = logits_of(self.trained(*[each[:samples] for each in self.inputs]))
            names = [each.name for each in session.get_inputs()]
            (output,) = session.run(None, {n: each[:samples].numpy() for n, each in zip(names, self.inputs)})
            difference = (torch.tensor(output) - wanted).abs().max() / max(1, wanted.abs().max())
            worst = max(worst, difference.item())
        return f"{worst:.0e}"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failed = False
    print(f"{'model':14} {'fp32':8} {'bf16':8} {'weights':8} ONNX")
    for name in sys.argv[2:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                trial = Trial(build, pathlib.Path(folder), name)
                row = [trial.trains("fp32"), trial.trains("bf16"), trial.returns(), trial.onnx()]
                failed |= any(each not in ("=", "(=)") for each in row[:3])
                failed |= row[3] != "loss" and not float(row[3]) <= 1e-5
            except Exception as error:
                failed, row = True, [str(error)]
        print(f"{name:14}", " ".join(f"{each:8}" for each in row), flush=True)
    sys.exit(failed)


main()
