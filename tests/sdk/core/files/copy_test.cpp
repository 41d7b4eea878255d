#include <vernier/copy.h>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/safetensors.h>

#include <utility>

#include "same_tensors.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace copy_test {

using vernier::Tensors;

namespace {

bool same_bytes(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bytes_of(a) == bytes_of(b);
}

torch::Tensor drawn(std::vector<std::int64_t> shape, torch::ScalarType type) {
  return torch::randint(0, 2, shape).to(type);
}

// Written and read again, so that nobody else has its memory.
Tensors read_back(const Tensors& tensors) {
  const TemporaryFolder folder;
  vernier::save_safetensors(folder / "file", tensors);
  return vernier::load_safetensors(folder / "file");
}

constexpr std::int64_t many = 100'000;

}  // namespace

TEST_CASE("copy: non-temporal copies are equal to those of copy_, for every dtype, size and address") {
  torch::manual_seed(1);
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat64, torch::kInt64, torch::kUInt8,
                          torch::kBool, torch::kFloat8_e4m3fn, torch::kComplexFloat}) {
    CAPTURE(type);
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, many, many + 1, many + 63}) {
      for (const std::int64_t first : {0, 1, 3}) {
        const auto from = drawn({size + first}, type).narrow(0, first, size);
        const auto all = torch::zeros({size + 2 * first + 2}, type);
        vernier::copy_non_temporal({{all.narrow(0, first + 1, size), from}});
        CHECK(same_bytes(all.narrow(0, first + 1, size), from));
        CHECK(same_bytes(all.narrow(0, 0, first + 1), torch::zeros({first + 1}, type)));  // and nothing beside it
        CHECK(same_bytes(all.narrow(0, size + first + 1, first + 1), torch::zeros({first + 1}, type)));
      }
    }
  }
}

TEST_CASE("copy: where the bytes are not alike, the values are copied") {
  torch::manual_seed(2);
  const auto from = torch::randn({400, 300});
  for (const auto& to : {torch::zeros({400, 300}, torch::kFloat64), torch::zeros({400, 300}, torch::kBFloat16),
                         torch::zeros({300, 400}).t(), torch::zeros({2, 400, 300}).select(0, 1)}) {
    vernier::copy_non_temporal({{to, from}});
    CHECK(to.equal(from.to(to.scalar_type())));
  }
  const auto wide = torch::zeros({3, 400, 300});
  vernier::copy_non_temporal({{wide, from}});
  CHECK(wide.equal(from.expand({3, 400, 300})));
  const auto complex = torch::randn({many}, torch::kComplexFloat), to = torch::zeros({many}, torch::kComplexFloat);
  vernier::copy_non_temporal({{to, complex.conj()}});
  CHECK(to.equal(complex.conj().resolve_conj()));
}

TEST_CASE("copy: many at once, by several threads, each once") {
  torch::manual_seed(3);
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    std::vector<vernier::Copied> all;
    for (int i = 0; i < 40; ++i) {
      const auto from = torch::randn({i % 4 == 3 ? 5 : 300'000 + i});
      all.push_back({torch::zeros(from.sizes(), i % 5 == 4 ? torch::kFloat64 : torch::kFloat32), from});
    }
    vernier::copy_non_temporal(all);
    for (const auto& [to, from] : all) CHECK(to.equal(from.to(to.scalar_type())));
  }
  at::set_num_threads(threads);
}

TEST_CASE("copy: autograd hears of it as it does of copy_") {
  const auto weight = torch::zeros({many}).requires_grad_();
  const auto loss = weight.square().sum();
  const auto version = weight._version();
  vernier::copy_non_temporal({{weight, torch::ones({many})}});
  CHECK(weight._version() > version);
  CHECK_THROWS(loss.backward());  // the tensors that it had saved are gone
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
}

TEST_CASE("copy: room for tensors has their names, dtypes and shapes") {
  const Tensors like = {{"a", torch::ones({3, 5}, torch::kBFloat16)},
                        {"b", torch::ones({5, 3}).t()},
                        {"none", torch::Tensor()},
                        {"nothing", torch::ones({0, 2})},
                        {"number", torch::tensor(std::int64_t{3})}};
  const auto made = vernier::empty_on_cpu(like);
  CHECK(made.size() == 4);
  CHECK(made.count("none") == 0);
  for (const auto& [name, tensor] : made) {
    CAPTURE(name);
    CHECK(tensor.is_contiguous());
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0);
    vernier::copy_non_temporal({{tensor, like.at(name)}});
  }
  for (const auto& [name, tensor] : made) CHECK(same_bytes(tensor, like.at(name)));
  CHECK(vernier::empty_on_cpu({}).empty());
}

TEST_CASE("copy: memory that was read from a file changes hands, and whoever shares the live tensor sees it") {
  const auto saved = torch::randn({many});
  const auto live = torch::zeros({many}).requires_grad_();
  const auto view = live.detach().view({10, -1}), alias = live.detach();
  auto read = read_back({{"w", saved}});
  const auto* memory = read.at("w").const_data_ptr();
  const auto version = live._version();
  vernier::move_into({{"w", live}}, std::move(read));
  CHECK(live.const_data_ptr() == memory);
  CHECK(live.equal(saved));
  CHECK(alias.equal(saved));
  CHECK(view.equal(saved.view({10, -1})));
  CHECK(live._version() > version);
  const torch::NoGradGuard no_grad;
  live.add_(1);
  CHECK(alias.equal(saved + 1));
  // Again, into what it has by now; and under two names, as a tied weight.
  vernier::move_into({{"a", live}, {"b", live}}, read_back({{"a", saved}, {"b", saved}}));
  CHECK(view.equal(saved.view({10, -1})));
  const Tensors both = {{"a", saved}, {"b", saved + 1}};  // copied: the last counts
  vernier::move_into({{"a", live}, {"b", live}}, both);
  CHECK(live.equal(saved + 1));
}

TEST_CASE("copy: memory that somebody else has or may know is copied") {
  const auto saved = torch::randn({many});
  const auto check_copied = [&](const torch::Tensor& live, Tensors from) {
    const auto* before = live.const_data_ptr();
    vernier::move_into({{"w", live}}, std::move(from));
    CHECK(live.const_data_ptr() == before);
    CHECK(live.equal(saved.to(live.scalar_type())));
  };
  const auto kept = read_back({{"w", saved}});
  const auto live = torch::zeros({many});
  check_copied(live, kept);  // the map was copied: the caller has the tensors too
  live.zero_();
  CHECK(kept.at("w").equal(saved));
  auto read = read_back({{"w", saved}});
  const auto view = read.at("w").narrow(0, 1, 5);
  check_copied(live, std::move(read));
  live.zero_();
  CHECK(view.equal(saved.narrow(0, 1, 5)));
  check_copied(live, {{"w", saved.clone()}});  // the saved one belongs to no file
  check_copied(torch::zeros({many}, torch::kFloat64), read_back({{"w", saved}}));
  check_copied(torch::zeros({2, many}).select(0, 1), read_back({{"w", saved}}));
  std::vector<float> array(many);  // the caller's own, who looks into it
  check_copied(torch::from_blob(array.data(), {many}), read_back({{"w", saved}}));
  CHECK(array[7] == saved[7].item<float>());
  CHECK(thrown_by([&] { vernier::move_into({{"w", live}}, {}); }).text == "the saved tensors have no 'w'");
}

TEST_CASE("copy: a read tensor lives on when the others of its file are gone") {
  auto read = read_back({{"a", torch::full({many}, 1.0)}, {"b", torch::full({many}, 2.0)}});
  const auto kept = read.at("b");
  read.clear();
  CHECK(kept.eq(2).all().item<bool>());
}

}  // namespace copy_test
