// Keeps each snapshot in a file of its own, after-N.st, or all of them in one place.
#include <ATen/ops/zeros_like.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <filesystem>

#include "mutant.h"

namespace {

namespace fs = std::filesystem;
using vernier::State;

class Checkpoint final : public vernier::Checkpoint {
 public:
  explicit Checkpoint(vernier::Options& options) : mutant_(options) {}
  bool due(const vernier::Run& run) override { return run.step % 10 == 0; }

  void write(const State& snapshot, vernier::Run& run) override {
    vernier::Tensors tensors;
    for (const auto& [name, tensor] : snapshot.tensors) tensors.emplace(name, changed(name, tensor).contiguous());
    if (mutant_.is("forgets_generator")) tensors["random/cpu"] = torch::zeros_like(tensors.at("random/cpu"));
    if (mutant_.is("forgets_a_weight")) tensors.erase(tensors.lower_bound("model/"));
    const auto folder = fs::path(run.output) / "archive";
    fs::create_directories(folder);
    const bool is_one = mutant_.is("writes_over") || mutant_.is("copies_over") || mutant_.is("removes_first");
    const auto path = folder / (is_one ? "after-1.st" : "after-" + std::to_string(run.step) + ".st");
    if (mutant_.is("removes_first")) fs::remove(path);
    if (is_one != mutant_.is("copies_over") || mutant_.is("writes_in_place"))
      return vernier::save_safetensors(path, tensors, {});
    vernier::save_safetensors(folder / "new", tensors, {});
    if (mutant_.is("copies_over")) {
      fs::copy_file(folder / "new", path, fs::copy_options::overwrite_existing);
      return;
    }
    fs::rename(folder / "new", path);
  }
  std::optional<State> read(const vernier::Run& run, const std::string& from) override {
    const auto all = in(run.output);
    const bool is_asked = !from.empty() && !mutant_.is("reads_newest");
    if (!is_asked && all.empty()) return std::nullopt;
    State state;
    const auto own = all.empty() ? "" : mutant_.is("reads_oldest") ? all.back() : all.front();
    if (mutant_.is("reads_anything") && !fs::exists(from) && !from.empty()) {
      state.put("run/step", std::int64_t{0});
      return state;
    }
    state.tensors = vernier::load_safetensors(is_asked ? from : own);
    return state;
  }
  std::vector<std::string> snapshots(const std::string& folder) override {
    auto all = in(folder);
    if (mutant_.is("names_oldest_first")) std::ranges::reverse(all);
    if (mutant_.is("names_none")) all.clear();
    return all;
  }

 private:
  torch::Tensor changed(const std::string& name, const torch::Tensor& tensor) const {
    if (mutant_.is("rounds_weights") && name.starts_with("model/"))
      return tensor.to(torch::kBFloat16).to(tensor.scalar_type());
    if (mutant_.is("changes_dtype") && tensor.scalar_type() == torch::kDouble) return tensor.to(torch::kFloat);
    return tensor;
  }
  static std::vector<std::string> in(const std::string& folder) {
    std::vector<std::string> all;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(fs::path(folder) / "archive", none)) {
      if (entry.path().extension() == ".st") all.push_back(entry.path());
    }
    std::ranges::sort(all, std::greater<>(), [](const std::string& path) { return std::pair(path.size(), path); });
    return all;
  }
  Mutant mutant_;
};

}  // namespace

VERNIER_PLUGIN(Checkpoint, "mutant", "1.0.0")
