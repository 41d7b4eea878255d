// GPT-2 as it is published: config.json and the names of its tensors.
#pragma once

#include "../language/task.h"

namespace gpt {

language::Family family();

}  // namespace gpt
