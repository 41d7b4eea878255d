"""Exports a model for task/graph: a torch.nn.Module as a training program of torch.export. Needs torch 2.11.

    python3 plugins/task/graph/export.py data/spirals.pt2

For a model of your own, import save() from here. What Vernier needs of the model:

- forward() takes a tensor for each source in [task] inputs, dimension 0 the sample, and returns one tensor, a tuple or
  a dict of tensors; [task] output names the one that counts.
- With loss = "output", forward() takes the target as its last argument and returns the loss.
- torch.export follows one path through forward(). A branch on a tensor's numbers must be torch.cond.

Parameters and buffers keep their names. So `vernier export --format safetensors` gives a file for load_state_dict(),
and `vernier export --format pt2` one for torch.export.load(). Training starts with the weights of the file.
"""

import io
import json
import pathlib
import sys
import zipfile

import torch
from torch import nn


def save(model, examples, path, autocast=None):
    """Writes a model with example tensors of any batch of two samples or more, and a description beside it.

    Every dimension 0 is dynamic. The gradients of one batch show that the file trains. Where evaluation is more than
    dropout and batch normalisation, as with stochastic depth, the file has that program as well.

    autocast: torch.bfloat16 for a model that asks tensors for their dtype, as some of transformers do, and is trained
    in that precision. The graph has the answers of the export.
    """
    program = write(model, examples, path, autocast)
    output = torch.export.load(path).module()(*examples)
    tensors = [value for value in torch.utils._pytree.tree_leaves(output) if torch.is_tensor(value)]
    if not any(tensor.requires_grad for tensor in tensors):
        sys.exit(f"{path}: no output has a gradient, so the model cannot be trained")
    description = {
        "torch": torch.__version__,
        "inputs": [
            {
                "name": spec.arg.name,
                "dtype": str(example.dtype).removeprefix("torch."),
                "shape": ["samples", *example.shape[1:]],
            }
            for spec, example in zip(
                [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"], examples
            )
        ],
        "outputs": [list(tensor.shape) for tensor in tensors],
        "parameters": [name for name, _ in model.named_parameters()],
    }
    pathlib.Path(path).with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n")


def write(model, examples, path, autocast=None):
    """Writes the file of save(), and returns the program."""
    examples = tuple(examples)
    program = exported(model.train(), examples, autocast)
    evaluation = exported(model.eval(), examples, autocast)
    model.train()
    more = {}
    if not is_evaluated_by_flags(program, evaluation):
        more["evaluation.json"] = text_of(evaluation, program)
    torch.export.save(program, path, extra_files=more)
    return program


def exported(model, examples, autocast):
    dynamic = tuple({0: torch.export.Dim.AUTO} for _ in examples)
    has_fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its kernels have no gradients
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        program = torch.export.export(model, examples, dynamic_shapes=dynamic)
    torch.backends.mha.set_fastpath_enabled(has_fastpath)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it has paths of this machine
    return program


def is_evaluated_by_flags(program, evaluation):
    """True if the two differ in flags of operators and counters of batches alone, which task/graph switches itself."""

    flags = ("train", "training", "dropout_p")

    def calls(exported):
        for module in exported.graph_module.modules():
            if not isinstance(module, torch.fx.GraphModule):
                continue
            places = {}
            for node in module.graph.nodes:
                if is_counter(node):
                    continue
                if node.target == torch.ops.aten.contiguous.default:  # kernels differ in where they need it
                    places[node] = places[node.args[0]]
                    continue
                places[node] = len(places)
                names = [one.name for one in node.target._schema.arguments] if hasattr(node.target, "_schema") else []
                named = dict(zip(names, node.args)) if names else dict(enumerate(node.args))
                named |= node.kwargs
                kept = {k: v for k, v in named.items() if v is not None and k not in flags}
                shown = torch.fx.node.map_arg(kept, lambda one: f"value {places.get(one)}")
                yield (str(node.target), str(shown)) if node.op == "call_function" else node.op

    def is_counter(node):
        return "add_" in str(node.target) and "num_batches_tracked" in str(node.args[0])

    return list(calls(program)) == list(calls(evaluation))


def text_of(evaluation, program):
    """The program of evaluation as torch.export writes it. Its constants become some of the other one."""
    file = io.BytesIO()
    torch.export.save(evaluation, file)
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/models/model.json")]
        text = json.loads(archive.read(name))
    for spec in text["graph_module"]["signature"]["input_specs"]:
        if constant := spec.get("tensor_constant"):
            name = constant["tensor_constant_name"]
            constant["tensor_constant_name"] = f"evaluation.{name}"
            program.constants[f"evaluation.{name}"] = evaluation.constants[name]
    return json.dumps(text)


class Model(nn.Module):
    """Three classes of points in a plane: logits [samples, 3] of float32 [samples, 2]."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.05), nn.Linear(width, 3)
        )

    def forward(self, points):
        return self.layers(points)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: export.py FILE.pt2")
    torch.manual_seed(1)
    save(Model(), [torch.randn(4, 2)], sys.argv[1])
