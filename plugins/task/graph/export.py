"""Exports a model for task/graph: a torch.nn.Module as a training program of torch.export. Needs torch 2.11.

    python3 plugins/task/graph/export.py data/spirals.pt2

For a model of your own, import save() from here. What Vernier needs of the model:

- forward() takes a tensor for each source in [task] inputs, dimension 0 the sample: as arguments, as *args, by keyword,
  as **kwargs, or in lists and dicts. It returns one tensor, or tuples, lists, dicts and dataclasses of tensors; [task] output names
  the one that counts, such as "logits" or "hidden_states.0".
- With loss = "output", forward() takes the target as its last argument and returns the loss.
- torch.export follows one path through forward(). A branch on a tensor's numbers must be torch.cond.

Parameters and buffers keep their names. So `vernier export --format safetensors` gives a file for load_state_dict(),
and `vernier export --format pt2` one for torch.export.load(). Training starts with the weights of the file.
"""

import contextlib
import inspect
import io
import json
import keyword
import pathlib
import random
import sys
import tempfile
import zipfile

import torch
from torch import distributed, nn
from torch.utils import _pytree as pytree


def save(model, examples, path, autocast=None, kwargs=None, sharded=None):
    """Writes a model with example tensors of any batch of two samples or more, and a description beside it.

    examples: the arguments of forward() by place; kwargs: a dict of those by name. Each is a tensor, a list or dict of
    tensors, or a constant such as None. [task] inputs names their tensors in this order.

    Every dimension 0 is dynamic. The file has a program of training and one of evaluation. A model that is in training
    mode in part keeps the modes of its parts, so that what you froze with eval() stays frozen; a model that is all in
    evaluation mode is put into training mode. A file that computes other outputs, gradients or buffers than the module
    is refused, in training or in evaluation.

    autocast: torch.bfloat16 for a model that asks tensors for their dtype, as some of transformers do, and is trained
    in that precision. The graph has the answers of the export.

    sharded: for a model that the ranks of torch.distributed hold together, whose forward() calls functional collectives.
    All ranks call save() with a path of their own, and the names of the parameters and buffers of which each has a part.
    """
    program, outputs = write(model, examples, path, autocast, kwargs, sharded)
    description = {
        "torch": torch.__version__,
        "inputs": [
            {
                "name": node.name,
                "dtype": str(example.dtype).removeprefix("torch."),
                "shape": ["samples", *example.shape[1:]],
            }
            for node, example in zip(inputs_of(program), tensors_in((examples, kwargs)))
        ],
        "outputs": [list(tensor.shape) for tensor in outputs],
        "parameters": [name for name, _ in model.named_parameters()],
    }
    pathlib.Path(path).with_suffix(".json").write_text(json.dumps(description, indent=2) + "\n")


def write(model, examples, path, autocast=None, kwargs=None, sharded=None):
    """Writes the file of save(), and returns its program and the model's outputs."""
    examples, path = (tuple(examples), dict(kwargs or {})), pathlib.Path(path)
    modes = {module: module.training for module in model.modules()}
    has_fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its kernels have no gradients
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, torch.random.fork_rng(devices=[]):
            if not any(modes.values()):
                model.train()
            program = exported(model, examples, autocast, path)
            in_training = {module: module.training for module in model.modules()}
            model.eval()
            evaluation = exported(model, examples, autocast, path)
            file, part = io.BytesIO(), pathlib.Path(folder, path.name)
            torch.export.save(evaluation, file)
            more = {"evaluation.json": text_of(file, evaluation, program)}
            if sharded is not None:
                if unknown := set(sharded) - set(tensors_of(model)):
                    sys.exit(f"{path}: not written. The model has no {', '.join(sorted(unknown))}, which sharded names")
                place = {"rank": distributed.get_rank(), "ranks": distributed.get_world_size()}
                more["parts.json"] = json.dumps({**place, "sharded": sorted(sharded)})
            torch.export.save(program, part, extra_files=more)
            compare(model, torch.export.load(file), examples, autocast, path)
            if autocast is None:
                warn_of_overflow(evaluation.module(), examples, path)
            set_modes(in_training)
            outputs = compare(model, torch.export.load(part), examples, autocast, path, is_training=True)
            part.replace(path)
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fastpath)
        set_modes(modes)
    return program, outputs


def set_modes(modes):
    for module, is_training in modes.items():
        module.training = is_training


def exported(model, examples, autocast, path):
    step(model, examples, autocast, 1.0, False)  # buffers that forward() registers in its first call are there now
    args, kwargs = examples
    dynamic = torch.export.ShapesCollection()
    for tensor in tensors_in(examples):
        dynamic[tensor] = {0: torch.export.Dim.AUTO}
    with torch.autocast("cpu", autocast, enabled=autocast is not None), named_kwargs(model, kwargs):
        program = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic.dynamic_shapes(model, args, kwargs))
    for node in inputs_of(program):
        if str(node.meta["val"].shape[0]).isdigit():
            sys.exit(
                f"{path}: not written. In the program, dimension 0 of '{node.name}' is always {node.meta['val'].shape[0]}"
                ", because forward() makes a constant of it. Write x.shape[0] where it has len(x), int(x.shape[0]), "
                "a loop over x, or a number in the place of the batch"
            )
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # it has paths of this machine
            schema = getattr(node.target, "_schema", None)
            for place, argument in enumerate(schema.arguments if schema else ()):
                # torch.export.load() of PyTorch 2.11 does not find the default of uniform_(from=0).
                if keyword.iskeyword(argument.name) and len(node.args) == place and argument.name not in node.kwargs:
                    node.args = (*node.args, argument.default_value)
            write_by_copy(node)
    return program


def write_by_copy(node):
    """Writes x.op(out=y), as spectral_norm calls it, as y.copy_(x.op()): task/graph has no operators with `out`."""
    out, operator = node.kwargs.get("out"), node.target
    if out is None or not isinstance(operator, torch._ops.OpOverload):
        return
    given = [argument.name for argument in operator._schema.arguments if not argument.is_out]
    packet = operator.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [argument.name for argument in overload._schema.arguments] == given and not overload._schema.is_mutable:
            with node.graph.inserting_before(node):
                kwargs = {name: value for name, value in node.kwargs.items() if name != "out"}
                result = node.graph.call_function(overload, node.args, kwargs)
                result.meta = dict(node.meta)
            node.target, node.args, node.kwargs = torch.ops.aten.copy_.default, (out, result), {}
            return


@contextlib.contextmanager
def named_kwargs(model, kwargs):
    """Names in the signature of forward() what its **kwargs get, because torch.export of PyTorch 2.11 needs it."""
    attributes, own = dict(vars(model)), model.forward
    known = inspect.signature(own).parameters
    kept = {name: one for name, one in known.items() if one.kind != inspect.Parameter.VAR_KEYWORD}
    for name in kwargs:
        kept.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
    if kept != known:

        def forward(*args, **kwargs):
            return own(*args, **kwargs)

        forward.__signature__ = inspect.Signature(list(kept.values()))
        model.forward = forward
    try:
        yield
    finally:
        vars(model).pop("forward", None)
        if "forward" in attributes:
            model.forward = own


def inputs_of(program):
    """The nodes of the tensors that forward() takes."""
    names = program.graph_signature.user_inputs
    nodes = program.graph.find_nodes(op="placeholder")
    return [node for node in nodes if node.name in names and torch.is_tensor(node.meta.get("val"))]


def tensors_in(examples):
    return [leaf for leaf in pytree.tree_leaves(examples) if torch.is_tensor(leaf)]


def warn_of_overflow(file, examples, path):
    """Says that a program of float32 has numbers that are too large for 16 bits, as masks of transformers have."""
    try:
        step(file, examples, torch.bfloat16, 1.0, False)
    except RuntimeError as error:
        if "without overflow" in str(error):
            print(f"{path} trains in float32 alone ({error}); for bfloat16 call save(…, autocast=torch.bfloat16)")


def text_of(file, evaluation, program):
    """The program of evaluation in its file. Its constants become some of the other program."""
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/models/model.json")]
        text = json.loads(archive.read(name))
    file.seek(0)
    for spec in text["graph_module"]["signature"]["input_specs"]:
        if constant := spec.get("tensor_constant"):
            name = constant["tensor_constant_name"]
            constant["tensor_constant_name"] = f"evaluation.{name}"
            program.constants[f"evaluation.{name}"] = evaluation.constants[name]
    return json.dumps(text)


def compare(model, program, examples, autocast, path, is_training=False):
    """Refuses a program that computes other numbers than the model, and returns the model's outputs."""
    mode, file, first, seeds = "training" if is_training else "evaluation", program.module(), {}, drawn()
    for name, tensor in tensors_of(model).items():  # torch.export.load() leaves tied tensors apart
        place, _, last = name.rpartition(".")
        owner = file.get_submodule(place)
        if hasattr(owner, last):
            setattr(owner, last, first.setdefault(tensor, getattr(owner, last)))
    # A backward pass that clips gradients shows at one of two scales. No guard of a program is about a batch of one.
    most = len(tensors_in(examples)[0])
    for samples, scale in ((1, 1.0), (most, 1e-3), (most, 1e3)):
        inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[:samples], examples)
        outputs, found = [], ""
        try:
            numbers, outputs = step(model, inputs, autocast, scale, is_training)
            of_file, _ = step(file, inputs, autocast, scale, is_training)
        except Exception as error:
            if samples == 1:
                continue  # batch normalisation, or a guard of the program
            if not outputs:
                raise
            found = f"a step fails ({str(error).partition(': ')[0]})"
        again, _ = step(model, inputs, autocast, scale, is_training)
        if drawn() != seeds or difference(numbers, again, autocast):
            sys.exit(
                f"{path}: not written. In {mode}, forward() gives other numbers in each call, and a file has those of "
                "one: draw random numbers by torch.rand() and the like, and keep what changes in buffers"
            )
        if found := found or difference(numbers, of_file, autocast):
            sys.exit(
                f"{path}: not written. In {mode}, for a batch of {samples}, {found} in the file. torch.export drops "
                f"{own_parts(model, outputs)}. Write a backward pass by detach(), as in x + (x.round() - x).detach(), "
                "what a hook does into forward(), and no_grad() for inference_mode()"
            )
    if is_training and not any(tensor.requires_grad for tensor in outputs):
        sys.exit(f"{path}: not written. No output has a gradient, so the model cannot be trained")
    return outputs


def drawn():
    """The state of generators that torch.export does not see."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy and numpy.random.get_state()[2]


def step(module, inputs, autocast, scale, is_training):
    """Returns the numbers of a step by name, and its outputs. The module is then as it was."""
    buffers = [(part, dict(part._buffers)) for part in module.modules()]
    before = {tensor: (tensor.detach().clone(), tensor.grad) for tensor in tensors_of(module).values()}
    torch.manual_seed(1)
    try:
        for tensor in before:
            tensor.grad = None
        with torch.set_grad_enabled(is_training), torch.autocast("cpu", autocast, enabled=autocast is not None):
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
            outputs = tensors_in(module(*args, **kwargs))
        numbers = {f"output {place}": tensor.detach().clone() for place, tensor in enumerate(outputs)}
        reals = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in outputs]
        losses = [
            (tensor.double() * torch.linspace(1, 9, tensor.numel()).cos().reshape(tensor.shape)).sum()
            for tensor in reals
            if tensor.requires_grad
        ]
        if losses:
            (scale * sum(losses)).backward()
        for name, tensor in tensors_of(module).items():
            if tensor not in before or not torch.equal(tensor, before[tensor][0]):
                numbers[f"'{name}' after a step"] = tensor.detach().clone()
            if tensor.grad is not None:
                numbers[f"the gradient of '{name}'"] = tensor.grad
    finally:
        for part, own in buffers:
            part._buffers.update(own)
        with torch.no_grad():
            for tensor, (old, grad) in before.items():
                tensor.copy_(old)
                tensor.grad = grad
    return numbers, outputs


def tensors_of(module):
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def difference(wanted, given, autocast):
    """Returns what differs by more than rounding, such as "output 0 is 1 in Python and 2"; "": nothing does."""
    dtypes = [tensor.dtype for tensor in wanted.values() if tensor.is_floating_point() or tensor.is_complex()]
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes + [autocast or torch.float64]) ** 0.5

    def largest(tensor):
        return tensor.abs().double().nan_to_num(0, 0).max().item() if tensor.numel() else 0

    most = max((largest(tensor) for name, tensor in wanted.items() if "gradient" in name), default=0)
    for name in wanted | given:
        a, b = wanted.get(name), given.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            shown = ["none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}" for tensor in (a, b)]
            return f"{name} is {shown[0]} in Python and {shown[1]}"
        bound = rounding * (largest(a) + (1e-3 * most if "gradient" in name else 0)) if a.dtype in dtypes else 0
        is_equal = torch.isclose(a, b, rtol=0, atol=bound, equal_nan=True)
        if not is_equal.all():
            place = is_equal.logical_not().nonzero()[0].tolist()
            return f"{name} at {place} is {a[tuple(place)].item():.6g} in Python and {b[tuple(place)].item():.6g}"
    return ""


def own_parts(model, outputs):
    """Names what a program cannot hold: backward passes of the model's own, and hooks."""
    kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    hooked = [name for name, part in model.named_modules() if any(getattr(part, kind) for kind in kinds)]
    found = [f"the hooks of '{name}'" if name else "the model's hooks" for name in hooked]
    for name, tensor in model.named_parameters():
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            found.append(f"the hooks of '{name}'")
    seen, left = set(), [tensor.grad_fn for tensor in outputs]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [one for one, _ in node.next_functions]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.append(f"backward() of {type(node).__name__.removesuffix('Backward')}")
    unnamed = "hooks on tensors, inference_mode(), manual_seed() and branches on a batch of one"
    return ", ".join(dict.fromkeys(found)) or unnamed


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
