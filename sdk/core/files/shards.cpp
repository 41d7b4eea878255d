#include "shards.h"

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>
#include <vernier/roles.h>

#include "files/huge_pages.h"
#include "files/weights.h"

namespace vernier {

namespace {

constexpr std::uint64_t most_bytes = 1024 * 1024;  // the largest tensor that may differ between ranks

// True for weights, and for what optimizer and precision keep of single parameters, also in the snapshots that a rewind
// keeps.
bool is_sharded_entry(const std::string& name) {
  if (name.starts_with("model/") || name.find("/model/") != std::string::npos) return true;
  const auto is_of = [&](const std::string& role) { return name.find("plugin/" + role + "/") != std::string::npos; };
  return is_of(Optimizer::role) || is_of(Precision::role);
}

// Returns what may differ between ranks, such as the history of an activation's range, also in the snapshots that a
// rewind keeps. Large tensors (weights, the optimizer's averages) follow from the summed gradients, and are the same.
State small_state_of(const State& snapshot) {
  State small;
  for (const auto& [name, tensor] : snapshot.tensors) {
    const bool is_state = is_sharded_entry(name) || ("/" + name).find("/plugin/") != std::string::npos;
    if (is_state && tensor.defined() && tensor.nbytes() <= most_bytes) small.put(name, tensor);
  }
  return small;
}

// Returns the parameter to which an entry of the optimizer ("<parameter>/<key>") or of the precision
// ("master/<parameter>", "compensation/<parameter>") belongs. Only the place tells a parameter from a key: both may
// have the same name. For other entries it returns a text that names nothing.
std::string parameter_of(const std::string& name) {
  const auto entry_of = [&](const std::string& role) {
    const auto words = "plugin/" + role + "/";
    const auto at = name.find(words);
    const auto id_end = at == std::string::npos ? at : name.find('/', at + words.size());
    return id_end == std::string::npos ? "" : name.substr(id_end + 1);
  };
  if (const auto entry = entry_of(Optimizer::role); entry.find('/') != std::string::npos) {
    const auto parameter = entry.substr(0, entry.rfind('/'));  // an optimizer around another one adds words before it
    return parameter.substr(parameter.rfind('/') + 1);
  }
  const auto entry = entry_of(Precision::role);
  const bool is_of_weights = entry.starts_with("master/") || entry.starts_with("compensation/");
  return is_of_weights ? entry.substr(entry.find('/') + 1) : "";
}

constexpr const char* parts_key = "run/model_parts";  // the number of ranks that hold the model together

std::string bits_of(const torch::Tensor& tensor) {
  const auto bytes = tensor.detach().to(torch::kCPU).contiguous();
  Checksum sum;
  sum.add(bytes.const_data_ptr(), bytes.nbytes());
  return c10::str(bytes.scalar_type(), " ", bytes.sizes(), " ", sum.digits());
}

// Returns the bits of rank 0's tensors.
State bits_of_first(const State& state, Distributed& distributed) {
  State bits;
  for (const auto& [name, tensor] : state.tensors) {
    if (distributed.rank() == 0 && tensor.defined()) bits.put(name, bits_of(tensor));
  }
  return from_bytes(distributed.gather(to_bytes(bits))[0]);
}

// Returns what a rank saves of a model in parts: entries of any size may differ from rank 0's.
State part_of(const State& snapshot, Distributed& distributed) {
  const std::string model = "model/";
  const auto first = bits_of_first(snapshot, distributed);
  State shard;
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (!tensor.defined()) continue;
    const bool is_part = name.starts_with(model) && draft::ModelParts::is_part(name.substr(model.size()));
    const bool is_same = distributed.rank() == 0 || (first.has(name) && first.text(name) == bits_of(tensor));
    if (is_part || !is_same) {
      shard.put(c10::str("rank/", distributed.rank(), "/", name), tensor);
    } else if (distributed.rank() == 0) {
      shard.put(name, tensor);
    }
  }
  return shard;
}

const OwnPart* own_part = nullptr;

}  // namespace

OwnPart::OwnPart(const Run& run, const Distributed& distributed) : own_(c10::str("rank/", distributed.rank(), "/")) {
  for (const auto& parameter : run.parameters) {
    if (!parameter.owned) others_.insert(parameter.name);
  }
  for (const auto& [name, tensor] : model_tensors(*run.model)) {
    if (draft::is_elsewhere(tensor)) others_.insert("model/" + name);
  }
  own_part = this;
}

OwnPart::~OwnPart() {
  own_part = nullptr;
}

bool OwnPart::leaves_out(const std::string& name, std::uint64_t bytes) {
  if (own_part == nullptr || bytes < HugePages::smallest) return false;
  if (name.starts_with("rank/")) return !name.starts_with(own_part->own_);
  if (const auto parameter = parameter_of(name); !parameter.empty()) return own_part->others_.contains(parameter);
  const auto model = ("/" + name).rfind("/model/");
  return model != std::string::npos && own_part->others_.contains(name.substr(model));
}

torch::Tensor here(const torch::Tensor& tensor) {
  if (!draft::is_elsewhere(tensor)) return tensor;
  auto copy = tensor.detach().clone();
  if (!draft::is_elsewhere(tensor)) return copy;
  draft::GradientParts::sum(at::zeros({1}, at::kDouble));  // names the rank that is lost
  throw Error("a rank that keeps weights is lost");
}

std::string to_bytes(const State& state) {
  c10::Dict<std::string, torch::Tensor> entries;
  for (const auto& [name, tensor] : state.tensors) {
    if (tensor.defined()) entries.insert(name, tensor.detach().to(torch::kCPU).contiguous());
  }
  const auto bytes = torch::jit::pickle_save(entries);
  return {bytes.begin(), bytes.end()};
}

State from_bytes(const std::string& bytes) {
  State state;
  for (const auto& entry : torch::jit::pickle_load({bytes.begin(), bytes.end()}).toGenericDict()) {
    state.tensors[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return state;
}

// Entries of a parameter that another rank owns are nowhere in a rank's snapshot.
State shard_of(const State& snapshot, Distributed& distributed) {
  if (draft::ModelParts::current() != nullptr) return part_of(snapshot, distributed);
  State names;
  for (const auto& [name, tensor] : snapshot.tensors) {
    if (is_sharded_entry(name) && tensor.defined()) names.put(name, std::int64_t{0});
  }
  const auto all = distributed.gather(to_bytes(names));
  if (distributed.rank() == 0) return snapshot;
  for (std::int64_t r = 0; r < distributed.rank(); ++r) {
    for (const auto& [name, ignored] : from_bytes(all[static_cast<std::size_t>(r)]).tensors) names.tensors.erase(name);
  }
  State shard;
  for (const auto& [name, ignored] : names.tensors) shard.put(name, snapshot.tensor(name));
  return shard;
}

void add_state_of_others(State& snapshot, Distributed& distributed, bool is_sharded) {
  if (distributed.ranks() == 1) return;
  snapshot.put("run/ranks", distributed.ranks());
  if (draft::ModelParts::current() != nullptr) return snapshot.put(parts_key, distributed.ranks());  // see part_of()
  const auto own = small_state_of(snapshot);
  const auto first = bits_of_first(own, distributed);
  State different;
  for (const auto& [name, tensor] : own.tensors) {
    if (distributed.rank() == 0) break;
    const bool is_in_shard = is_sharded && is_sharded_entry(name);
    if (first.has(name) ? first.text(name) != bits_of(tensor) : !is_in_shard) different.put(name, tensor);
  }
  const auto all = distributed.gather(to_bytes(different));
  for (std::size_t r = 1; r < all.size() && distributed.rank() == 0; ++r) {
    for (const auto& [name, tensor] : from_bytes(all[r]).tensors) snapshot.put(c10::str("rank/", r, "/", name), tensor);
  }
}

void take_own_state(State& snapshot, const Distributed& distributed) {
  const auto parts = snapshot.has(parts_key) ? snapshot.integer(parts_key) : 1;
  const auto* model_parts = draft::ModelParts::current();
  const auto wanted = model_parts == nullptr ? 1 : model_parts->ranks();
  if (parts != wanted) {
    refuse(c10::str(
        "the checkpoint has ", parts == 1 ? "the whole model" : c10::str("the model in parts of ", parts, " ranks"),
        ", and this run has ", wanted == 1 ? "no parts of it" : c10::str("parts of ", wanted, " ranks"),
        parts == 1 ? "; resume it as it was started, without [distributed] use = \"model_parallel\""
                   : c10::str("; resume it with [distributed] use = \"model_parallel\" on ", parts, " ranks")));
  }
  const bool is_as_many = snapshot.has("run/ranks") && snapshot.integer("run/ranks") == distributed.ranks();
  const auto own = is_as_many ? snapshot.part(c10::str("rank/", distributed.rank())) : State();
  std::erase_if(snapshot.tensors, [](const auto& entry) { return entry.first.starts_with("rank/"); });
  for (const auto& [name, tensor] : own.tensors) snapshot.put(name, tensor);
}

}  // namespace vernier
