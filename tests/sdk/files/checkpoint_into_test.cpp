// Restores a checkpoint into existing tensors.
#include <doctest/doctest.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/memory.h>

#include <fstream>

#include "same_tensors.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace checkpoint_into_test {

using vernier::Tensors;

namespace {

Tensors some_model() {
  torch::manual_seed(3);
  return {{"h.0.weight", torch::randn({301, 1024})},
          {"h.0.bias", torch::randn({1024}).to(torch::kBFloat16)},
          {"count", torch::tensor(std::int64_t{7})},
          {"nothing", torch::empty({0, 3})},
          {"ready", torch::ones({70000}, torch::kBool)}};
}

Tensors other_values(const Tensors& like) {
  Tensors live;
  for (const auto& [name, tensor] : like) live[name] = torch::zeros_like(tensor);
  return live;
}

struct Saved {
  Saved() : path(folder / "step-00000010") { vernier::write_checkpoint(path, {.step = 10}, some_model(), {}); }
  std::string model() const { return path + "/model.safetensors"; }
  Thrown into(const Tensors& live) const {
    return thrown_by([&] { vernier::read_checkpoint_into(path, live); });
  }
  TemporaryFolder folder;
  std::string path;
};

}  // namespace

TEST_CASE("checkpoint into: the live tensors get the values in their own memory") {
  const Saved saved;
  auto live = other_values(some_model());
  live["h.0.weight"].requires_grad_();
  const auto weight = live["h.0.weight"];
  const auto* memory = weight.const_data_ptr();
  const auto version = weight._version();
  CHECK(vernier::read_checkpoint_into(saved.path, live).step == 10);
  check_equal(live, some_model());
  CHECK(weight.const_data_ptr() == memory);
  CHECK(weight._version() > version);
  const Tensors some = {{"count", torch::zeros({}, torch::kInt64)}};
  CHECK(saved.into(some) == Thrown{});
  CHECK(some.at("count").item<std::int64_t>() == 7);
}

TEST_CASE("checkpoint into: other dtypes and strides are converted, and a tied weight gets the last of its values") {
  const Saved saved;
  auto live = other_values(some_model());
  live["h.0.bias"] = torch::zeros({1024});
  live["h.0.weight"] = torch::zeros({1024, 301}).t();
  CHECK(saved.into(live) == Thrown{});
  CHECK(live["h.0.weight"].equal(some_model()["h.0.weight"]));
  CHECK(live["h.0.bias"].equal(some_model()["h.0.bias"].to(torch::kFloat)));

  const auto tied = saved.folder / "step-00000020";
  const auto a = torch::randn({64, 64}), b = torch::randn({64, 64}), shared = torch::zeros({64, 64});
  vernier::write_checkpoint(tied, {}, {{"in", a}, {"out", b}}, {});
  vernier::read_checkpoint_into(tied, {{"in", shared}, {"out", shared}});
  CHECK(shared.equal(b));
}

TEST_CASE("checkpoint into: tensors that share a part of their memory get their values in the order of their names") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000020";
  const auto a = torch::randn({64, 64}), b = torch::randn({64, 64}), c = torch::randn({8});
  vernier::write_checkpoint(path, {}, {{"a", a}, {"b", b}, {"c", c}}, {});
  std::vector<float> buffer(64 * 64 + 64);
  const auto first = torch::from_blob(buffer.data(), {64, 64}), second = torch::from_blob(buffer.data() + 64, {64, 64}),
             alone = torch::zeros({8});
  vernier::read_checkpoint_into(path, {{"a", first}, {"b", second}, {"c", alone}});
  CHECK(first[0].equal(a[0]));
  CHECK(second.equal(b));
  CHECK(alone.equal(c));
}

TEST_CASE("checkpoint into: it takes no memory for a second copy") {
  const Saved saved;
  const auto live = other_values(some_model());
  vernier::count_memory(torch::kCPU);
  const auto before = vernier::allocated_memory(torch::kCPU).now;
  vernier::reset_peak_memory(torch::kCPU);
  CHECK(saved.into(live) == Thrown{});
  CHECK(vernier::allocated_memory(torch::kCPU).peak == before);
  check_equal(live, some_model());
}

TEST_CASE("checkpoint into: what is damaged or does not fit is refused, and the live tensors are as they were") {
  const Saved saved;
  const auto live = other_values(some_model());
  const auto good = read_text(saved.model());
  const auto damage = [&](const std::string& bytes) {
    std::ofstream(saved.model(), std::ios::binary | std::ios::trunc) << bytes;
  };
  auto bytes = good;
  bytes.back() ^= 1;
  damage(bytes);
  CHECK(says(saved.into(live).text, saved.model() + ": tensor 'ready': "));
  damage(good.substr(0, good.size() / 2));
  CHECK(says(saved.into(live).text, "is cut short"));
  damage(good);

  const auto refused = [&](const std::string& name, const torch::Tensor& tensor) {
    auto changed = live;
    changed[name] = tensor;
    return saved.into(changed);
  };
  const auto place = saved.model() + ": tensor '";
  CHECK(refused("unknown", torch::zeros({1})) == failed(place + "unknown': it is not in the file"));
  CHECK(refused("h.0.weight", torch::zeros({301, 1025})) ==
        failed(place + "h.0.weight': it is [301, 1024], and the live one [301, 1025]"));
  CHECK(refused("h.0.weight", {}) == failed(place + "h.0.weight': it is [301, 1024], and the live one undefined"));
  check_equal(live, other_values(some_model()));
  CHECK(saved.into(live) == Thrown{});
  check_equal(live, some_model());
}

}  // namespace checkpoint_into_test
