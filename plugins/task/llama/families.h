// The families of models that differ from Llama in parts: what a config.json of each means.
#pragma once

#include "../language/folder.h"

namespace llama {

// The layout with all their model types, and a network with names and defaults of transformers.
language::Family family();

}  // namespace llama
