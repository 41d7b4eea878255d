// The model of a run by layers, as `vernier check` prints it before training.
#pragma once

#include <string>
#include <vector>

#include "advice/precision_advice.h"

namespace vernier {

class Run;

// One line for each layer that has parameters: name, operator, shape of its output in the first micro-batch, number of
// parameters, and how many of them are trained. In a model of many layers, blocks that follow each other and differ in
// their number alone are one: "h.0…11.attn". seen: the operators of a forward pass.
std::string layer_table(const Run& run, const std::vector<Seen>& seen);

}  // namespace vernier
