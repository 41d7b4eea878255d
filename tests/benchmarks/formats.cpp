// Rounding a million numbers to number formats and back, beside the emulations of torchao and pychop where python3 has
// them, on one thread. Bar: faster than both.
//
//   formats [--check]     --check: exits with 1 where a bar is missed
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/randn.h>
#include <vernier/lab/tensor_format.h>

#include <filesystem>
#include <fstream>
#include <string_view>

#include "compare.h"
#include "python_rival.h"

namespace {

namespace fs = std::filesystem;
constexpr std::int64_t size = 1024;  // rows, and columns

struct Case {
  const char* format;
  vernier::ScaleBlock block;
  const char* package;  // the rival's package
};
constexpr Case cases[] = {{"e5m2", vernier::per_tensor, "pychop"},
                          {"mxfp8", {1, 32}, "torchao"},
                          {"mxfp4", {1, 32}, "torchao"},
                          {"nvfp4", {1, 16}, "torchao"}};

torch::Tensor read(const fs::path& path) {
  auto numbers = at::empty({size, size});
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(numbers.mutable_data_ptr()), static_cast<std::streamsize>(numbers.nbytes()));
  return numbers;
}

bool compare_format(const Case& one, const torch::Tensor& x, Python& python, const fs::path& folder) {
  const auto format = vernier::tensor_format(one.format);
  std::vector<Rival> rivals = {{"vernier::round_to", [&] { vernier::round_to(x, format, one.block); }}};
  const auto name = std::string(one.package) + " " + one.format;
  if (python.has(name)) {
    rivals.push_back({name, [&] { python.call(name); }});
    python.call("write " + name);
    const auto other = read(folder / (std::string(one.package) + "-" + one.format + ".f32"));
    const auto differ = vernier::round_to(x, format, one.block).ne(other).sum().item<std::int64_t>();
    std::printf("%s: %lld of %lld numbers are others in %s\n", one.format, static_cast<long long>(differ),
                static_cast<long long>(x.numel()), one.package);
  }
  const auto done = compare(one.format, std::move(rivals), /*rounds=*/15, /*steps_a_round=*/2);
  if (done.size() == 1) return true;
  const bool is_met = done[1].ratio(done[0]) > 1;
  std::printf("  bar, faster than %s: %s\n", one.package, is_met ? "met" : "missed");
  return is_met;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  char made[] = "/tmp/vernier-formats-XXXXXX";
  if (::mkdtemp(made) == nullptr) return 1;
  const fs::path folder = made;
  const auto x = at::randn({size, size});
  std::ofstream(folder / "x.f32", std::ios::binary)
      .write(static_cast<const char*>(x.const_data_ptr()), static_cast<std::streamsize>(x.nbytes()));
  bool is_met = true;
  {
    Python python("formats_rival.py", {folder.string()});
    for (const auto& one : cases) is_met = compare_format(one, x, python, folder) && is_met;
  }
  fs::remove_all(folder);
  const bool checks = argc > 1 && std::string_view(argv[1]) == "--check";
  return checks && !is_met ? 1 : 0;
}
