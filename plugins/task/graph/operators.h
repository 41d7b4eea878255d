// The operators that a graph may call: those of libraries that the user names, and a list of LibTorch's. LibTorch has
// others that trust their arguments, open files, or give out memory that nobody wrote.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace graph {

// An operator call, seen before the operator runs.
struct Call {
  const c10::FunctionSchema& schema;
  torch::jit::Stack& arguments;
  // Returns the argument of that name. The schema must have it.
  c10::IValue& operator[](const char* name) const;
};

// The work around a call: a check before it, and zeros in new memory after it.
struct Rule {
  void (*check)(const Call& call) = nullptr;  // throws Error where LibTorch would trust wrong arguments
  bool is_filled = false;                     // the result is fresh memory, which becomes 0
};

// Returns the operator of a target such as "aten.add.Tensor"; none: LibTorch has no such operator.
std::optional<c10::OperatorHandle> operator_of(const std::string& target);
// Returns the rule of a target, or null for one that a graph may not call.
const Rule* rule_of(const std::string& target);
// Returns true for an operator of any library that was opened.
bool is_of_library(const std::string& target);
// Opens libraries of the user's, and lets the graphs that are read next call the operators of these alone. Throws Error
// for one that registers none.
void take_operators_of(const std::vector<std::string>& libraries);
// Returns the targets of all operators of LibTorch that a graph may call.
std::vector<std::string> all_targets();

}  // namespace graph
