// The end of each Python file that a task's export writes.
#pragma once

inline constexpr const char* python_load = R"(

def load(path):
    """The model with the weights of a safetensors file, for evaluation. Every name and shape must fit."""
    from safetensors.torch import load_file

    model = Model()
    model.load_state_dict(load_file(path))
    return model.eval()
)";
