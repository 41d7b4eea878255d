// The program of a file of torch.export: its nodes in order, ready to be called through LibTorch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "archive.h"
#include "operators.h"

namespace graph {

using c10::IValue;

// Values of a program are numbered: a slot holds the value of a name of the file.
using Slot = std::int64_t;
constexpr Slot no_slot = -1;

struct Graph;

// An argument of a node: known when the file is read, or made of slots at each call.
struct Argument {
  enum class Kind { constant, slot, list, device };
  Kind kind = Kind::constant;
  IValue value = {};  // the value of a constant
  Slot slot = no_slot;
  c10::TypePtr type = {};            // type in the operator's schema; for a list, the type of its elements
  std::vector<Argument> items = {};  // the items of a list
};

struct Node {
  // call: an operator. arithmetic: Python's, on sizes. cond: one of two graphs. set_grad, autocast: a graph with that
  // on or off. while_loop: a graph that repeats while another returns true. scan and map: a graph for each row.
  enum class Kind { call, arithmetic, cond, set_grad, autocast, while_loop, scan, map };
  Kind kind = Kind::call;
  std::string name;  // such as "aten.linear of 'layers.0'"
  std::optional<c10::OperatorHandle> op;
  IValue (*arithmetic)(const std::vector<IValue>& arguments) = nullptr;
  std::vector<Argument> arguments;             // one for each argument of op's schema, in order
  std::vector<std::vector<Slot>> outputs;      // slots of each value that is returned; a list of tensors has several
  std::vector<std::shared_ptr<Graph>> graphs;  // cond and while_loop: two; else one
  std::vector<std::size_t> lists;              // how many of the arguments are in each list of a call of graphs
  std::vector<Slot> last_used;                 // the slots that no later node reads
  // Changes of evaluation mode: arguments that are then other ones, or the whole node that is left out.
  std::vector<std::pair<std::size_t, IValue>> in_evaluation;
  bool only_in_training = false;
  bool is_of_torch = false;  // a module of torch.nn calls it
  Rule rule;
};

struct Graph {
  std::vector<Slot> inputs;
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  Slot slots = 0;
};

// A tensor that a graph takes from the module or from the user.
struct Input {
  enum class Kind { parameter, buffer, constant, user };
  Kind kind = Kind::user;
  std::string name;           // name of the module's tensor, or of forward()'s argument
  bool is_persistent = true;  // a part of the module's state_dict()
  Slot slot = no_slot;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::optional<std::int64_t>> sizes;  // sizes of a user's input; none: dynamic
};

struct Program {
  Graph graph;
  std::vector<Input> inputs;
  std::vector<std::string> outputs;  // names of what forward() returns: keys of a dict, else places
  std::vector<std::string> guards;   // conditions on the sizes of its inputs: see guards.h
  bool has_training_nodes = false;   // dropout or batch normalisation in training form
  bool has_idle_nodes = false;       // the same, exported in evaluation mode
  std::string guessed;               // the first node of another module that is switched in evaluation mode
  bool has_writes = false;           // an operator that changes a tensor in place
};

// Reads a program of the archive, and refuses what cannot be trained: one line that names all operators LibTorch lacks,
// or the first other reason. switches: it has no program of evaluation beside it, and is switched as torch.nn does it.
Program program_of(Archive& archive, const nlohmann::json& file, bool switches);

}  // namespace graph
