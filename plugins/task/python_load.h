// The end of each Python file that a task's export writes.
#pragma once

inline constexpr const char* python_load = R"(

def read_safetensors(path):
    import json
    from pathlib import Path

    types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types["I64"] = torch.int64
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw, dtype = bytearray(data[start + begin : start + end]), types[entry["dtype"]]
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def load(path=None):
    """The network for evaluation. path: its weights, or their folder; None: they are beside this file."""
    from pathlib import Path

    path = Path(path or __file__)
    if path.suffix != ".safetensors":
        path = (path if path.is_dir() else path.parent) / "model.safetensors"
    model = Model()
    model.load_state_dict(read_safetensors(path))
    return model.eval()
)";
