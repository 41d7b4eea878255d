// GPT-2 as others publish it: what its config.json means, and the names of its tensors.
#pragma once

#include "../language/folder.h"

namespace gpt {

language::Family family();

}  // namespace gpt
