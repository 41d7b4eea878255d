#include <c10/util/StringUtil.h>
#include <vernier/non_finite_tracer.h>

#include <algorithm>
#include <array>

#include "tracer_seen.h"

namespace vernier {

namespace {

// How far a bad value is to blame where others are bad too. Infinities may be meant: log(0) of a mask adds -inf to the
// scores that a softmax is to leave out, and a minimum begins at inf.
enum class Blame {
  full,
  constant,  // an infinity that no weight had a part in; to blame where a nan is made of it
  mask,      // one that was filled in, or was there before: to blame where nothing else is
};

// The origin of a bad value: an operation, or a buffer that was bad before any wrote it.
struct Fault {
  int operation = -1;
  int buffer = -1;  // a leaf's, or one that changed after its last writer, by no operation
  bool is_there = false;
  Blame blame = Blame::full;
  bool is_outside = false;
  bool operator<(const Fault& other) const {
    return std::pair(blame, operation) < std::pair(other.blame, other.operation);
  }
};

bool has_only_minus_inf(const TensorRange& range) {
  return range.nans == 0 && range.infs == range.negative_infs;
}

// Operations to which -inf says that a value does not count. A nan that comes of it is of what else they were given.
bool takes_masks(const std::string& operation) {
  return std::ranges::any_of(std::array{"softmax", "logsumexp", "attention"},
                             [&](const char* part) { return operation.find(part) != std::string::npos; });
}

class Search {
 public:
  explicit Search(const NonFiniteTracer::Seen& seen) : seen_(seen) {
    faults_.resize(seen.operations.size());
    is_of_weights_.resize(seen.operations.size());
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      is_of_weights_[i] = is_of_weights(seen.operations[i]);
      faults_[i] = fault_of(static_cast<int>(i));
    }
  }

  // The fault of a value that is read from a buffer after that many operations had written it.
  Fault fault_of_read(int buffer, int writers, const TensorRange& range) const {
    Fault fault;
    if (buffer < 0) return fault;
    const auto& of = seen_.buffers[static_cast<std::size_t>(buffer)];
    for (int i = std::min(writers, static_cast<int>(of.writers.size())) - 1; i >= 0; --i) {
      const auto& found = faults_[static_cast<std::size_t>(of.writers[static_cast<std::size_t>(i)])];
      if (found.is_there) return found;
    }
    fault.is_there = true;
    fault.buffer = buffer;
    fault.is_outside = writers > 0;
    if (fault.is_outside) fault.operation = of.writers[static_cast<std::size_t>(writers - 1)];
    const bool is_of_weights = of.kind == SeenBuffer::Kind::parameter ||
                               (fault.is_outside && is_of_weights_[static_cast<std::size_t>(fault.operation)]);
    const bool may_be_meant = !is_of_weights && has_only_minus_inf(range);
    if (may_be_meant) fault.blame = of.kind == SeenBuffer::Kind::batch ? Blame::constant : Blame::mask;
    return fault;
  }

  // The part of an operation that made the bad value; the operation itself where none of them is to blame.
  int part_of(int operation) const {
    for (std::size_t i = static_cast<std::size_t>(operation) + 1; i < faults_.size(); ++i) {
      if (seen_.operations[i].parent != operation || !faults_[i].is_there) continue;
      if (faults_[i].operation == static_cast<int>(i) && !faults_[i].is_outside) return part_of(static_cast<int>(i));
    }
    return operation;
  }

  const TensorRange& range(const SeenTensor& tensor) const { return seen_.ranges[tensor.range].range; }

 private:
  Fault fault_of(int index) const {
    const auto& operation = seen_.operations[static_cast<std::size_t>(index)];
    Fault fault;
    bool has_nan = false, only_minus_inf = true;
    for (const auto& output : operation.outputs) {
      const auto& range = this->range(output);
      if (range.is_finite()) continue;
      fault.is_there = true;
      has_nan |= range.nans > 0;
      only_minus_inf &= has_only_minus_inf(range);
    }
    if (!fault.is_there) return fault;
    Fault earliest;
    bool is_mask = false;
    for (const auto& input : operation.inputs) {
      if (!input.is_read || range(input).is_finite()) continue;
      const auto from = fault_of_read(input.buffer, input.writers, range(input));
      if (!from.is_there || (earliest.is_there && !(from < earliest))) continue;
      earliest = from;
      is_mask = from.blame == Blame::mask || (takes_masks(operation.name) && has_only_minus_inf(range(input)));
    }
    if (earliest.is_there && (earliest.blame == Blame::full || !has_nan)) return earliest;
    if (earliest.is_there && !is_mask) {
      earliest.blame = Blame::full;
      return earliest;
    }
    fault.operation = index;
    if (operation.fills_minus_inf && only_minus_inf) {
      fault.blame = Blame::mask;
    } else if (!has_nan && !is_of_weights_[static_cast<std::size_t>(index)]) {
      fault.blame = Blame::constant;
    }
    return fault;
  }

  // True if a weight had a part in what it read; those before it are known.
  bool is_of_weights(const SeenOperation& operation) const {
    return std::ranges::any_of(operation.inputs, [this](const SeenTensor& input) {
      if (!input.is_read || input.buffer < 0) return false;
      const auto& of = seen_.buffers[static_cast<std::size_t>(input.buffer)];
      const auto writers = of.writers.begin() + std::min<std::ptrdiff_t>(input.writers, std::ssize(of.writers));
      return of.kind == SeenBuffer::Kind::parameter || std::any_of(of.writers.begin(), writers, [this](int writer) {
               return static_cast<bool>(is_of_weights_[static_cast<std::size_t>(writer)]);
             });
    });
  }

  const NonFiniteTracer::Seen& seen_;
  std::vector<Fault> faults_;
  std::vector<bool> is_of_weights_;
};

std::string layer_of_parameter(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// "[3]" of "self[3]".
std::string place_in_list(const std::string& name) {
  const auto bracket = name.rfind('[');
  return bracket == std::string::npos ? "" : name.substr(bracket);
}

// An operation on lists has as many results as they have members.
std::string place_of_bad(const SeenOperation& operation, const Search& search) {
  const auto bad =
      std::ranges::find_if(operation.outputs, [&](const auto& each) { return !search.range(each).is_finite(); });
  return bad == operation.outputs.end() ? "" : place_in_list(bad->name);
}

void describe_operation(const NonFiniteTracer::Seen& seen, const Search& search, int index, const std::string& end,
                        NonFiniteOrigin& origin) {
  const auto& operation = seen.operations[static_cast<std::size_t>(index)];
  const int part = search.part_of(index);
  origin.operation = operation.name;
  if (const auto* node = seen.node_of(index); node != nullptr) {
    origin.operation = node->name + " (" + operation.name + ")";
  } else if (const auto& inner = seen.operations[static_cast<std::size_t>(part)].name; inner != operation.name) {
    origin.operation += " (" + inner + ")";
  }
  origin.phase = operation.is_backward ? "backward" : operation.layer < 0 ? "input" : "forward";
  origin.is_after = operation.is_after;
  origin.micro_batch = operation.micro_batch;
  if (operation.layer >= 0) origin.layer = seen.layers.names()[static_cast<std::size_t>(operation.layer)];
  if (operation.layer == -2) origin.layer = layer_of_parameter(end);
  const auto place = place_of_bad(operation, search);
  const auto is_shown = [&place](const SeenTensor& tensor) {
    return place.empty() || place_in_list(tensor.name).empty() || place_in_list(tensor.name) == place;
  };
  for (const auto& input : operation.inputs) {
    if (input.is_read && is_shown(input)) origin.inputs.emplace_back(input.name, search.range(input));
  }
  for (const auto& output : operation.outputs) {
    if (!is_shown(output)) continue;
    origin.outputs.emplace_back(output.name, search.range(output));
    if (search.range(output).is_finite() || output.buffer < 0) continue;
    const auto& buffer = seen.buffers[static_cast<std::size_t>(output.buffer)];
    if (buffer.kind != SeenBuffer::Kind::parameter) continue;
    origin.phase = "update";
    origin.tensor = buffer.name;
    origin.layer = layer_of_parameter(buffer.name);
    origin.is_after = false;
  }
}

void describe_leaf(const NonFiniteTracer::Seen& seen, const Fault& fault, const TensorRange& range,
                   NonFiniteOrigin& origin) {
  const auto& buffer = seen.buffers[static_cast<std::size_t>(fault.buffer)];
  origin.tensor = buffer.name.empty() ? "a tensor from before the step" : buffer.name;
  const auto kind = buffer.kind;
  origin.phase = kind == SeenBuffer::Kind::parameter ? "update" : kind == SeenBuffer::Kind::buffer ? "buffer" : "input";
  if (kind == SeenBuffer::Kind::parameter || kind == SeenBuffer::Kind::buffer) {
    origin.layer = layer_of_parameter(buffer.name);
  }
  origin.outputs.emplace_back(origin.tensor, range);
}

// How the buffer of a leaf was when it was first found bad.
TensorRange range_when_read(const NonFiniteTracer::Seen& seen, const Search& search, int buffer) {
  for (const auto& operation : seen.operations) {
    for (const auto& input : operation.inputs) {
      if (input.buffer == buffer && input.is_read && !search.range(input).is_finite()) return search.range(input);
    }
  }
  return {};
}

}  // namespace

std::optional<NonFiniteOrigin> NonFiniteTracer::origin(
    const std::vector<std::pair<std::string, torch::Tensor>>& ends) const {
  const Search search(*seen_);
  Fault earliest;
  std::string end;
  for (const auto& [name, tensor] : ends) {
    const auto range = range_of(tensor);
    if (range.is_finite()) continue;
    const int buffer = seen_->buffer_for(tensor);
    if (buffer < 0) continue;  // no memory that could be followed
    const auto writers = seen_->buffers[static_cast<std::size_t>(buffer)].writers.size();
    const auto fault = search.fault_of_read(buffer, static_cast<int>(writers), range);
    if (earliest.is_there && !(fault < earliest)) continue;
    earliest = fault;
    end = name;
  }
  if (!earliest.is_there) return std::nullopt;
  NonFiniteOrigin origin;
  if (earliest.is_outside) {
    describe_operation(*seen_, search, earliest.operation, end, origin);
    origin.operation = "written by no operation, after " + origin.operation;
    origin.inputs = std::move(origin.outputs);
    origin.outputs = {{"then", range_when_read(*seen_, search, earliest.buffer)}};
  } else if (earliest.operation < 0) {
    describe_leaf(*seen_, earliest, range_when_read(*seen_, search, earliest.buffer), origin);
  } else {
    describe_operation(*seen_, search, earliest.operation, end, origin);
  }
  return origin;
}

std::string NonFiniteOrigin::place() const {
  if (phase == "update" && operation.empty()) {
    return "update: " + tensor + " was not finite before the step computed anything";
  }
  if (phase == "update") {
    return phase + (step > 0 ? c10::str(" of step ", step) : "") + ", " + tensor + ": " + operation;
  }
  if (phase == "buffer") return "buffer: " + tensor + " was not finite before the step began";
  if (phase == "norm") return "norm: every gradient is finite, their norm is not; the largest is of " + tensor;
  if (phase == "input" && operation.empty()) return "input: " + tensor;
  const auto where = layer.empty() ? std::string("before the first layer") : (is_after ? "after " : "") + layer;
  return phase + ", " + where + ": " + operation;
}

std::string NonFiniteOrigin::text() const {
  std::string text = place();
  const auto add = [&text](const char* what, const auto& ranges) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      text += (i == 0 ? what : "; ") + ranges[i].first + " " + ranges[i].second.text();
    }
  };
  add(inputs.empty() ? "" : "; from ", inputs);
  add(phase == "update" && operation.empty() ? "; " : "; came ", outputs);
  return text;
}

}  // namespace vernier
