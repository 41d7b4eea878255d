// Restoring a checkpoint into tensors that are there.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "file.h"
#include "same_tensors.h"
#include "temporary_folder.h"
#include "thrown.h"

using vernier::Tensors;
namespace fs = std::filesystem;

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

struct Descriptor {
  Descriptor(const std::string& path, int flags) : number(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  int number;
};

}  // namespace

TEST_CASE("checkpoint into: the live tensors get the values in their own memory, with one thread and with two") {
  const Saved saved;
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    auto live = other_values(some_model());
    live["h.0.weight"].requires_grad_();
    const auto weight = live["h.0.weight"];
    const auto* memory = weight.const_data_ptr();
    const auto version = weight._version();
    CHECK(vernier::read_checkpoint_into(saved.path, live).step == 10);
    for (const auto& [name, tensor] : some_model()) {
      CAPTURE(name);
      CHECK(live.at(name).equal(tensor));
    }
    CHECK(weight.const_data_ptr() == memory);
    CHECK(weight._version() > version);
  }
  at::set_num_threads(before);
  const Tensors some = {{"count", torch::zeros({}, torch::kInt64)}};
  CHECK(saved.into(some) == Thrown{});
  CHECK(some.at("count").item<std::int64_t>() == 7);
}

TEST_CASE("checkpoint into: a file that is open for writing is read without a mapping") {
  const Saved saved;
  const Descriptor writer(saved.model(), O_WRONLY);
  REQUIRE(writer.number >= 0);
  const vernier::File file(saved.model(), O_RDONLY);
  CHECK(vernier::MappedFile::of(file, file.size()) == nullptr);
  const auto live = other_values(some_model());
  CHECK(saved.into(live) == Thrown{});
  check_equal(live, some_model());
}

TEST_CASE("checkpoint into: nobody writes to a file while its bytes are looked at in place") {
  const Saved saved;
  const auto bytes = read_text(saved.model());
  const vernier::File file(saved.model(), O_RDONLY);
  {
    const auto mapped = vernier::MappedFile::of(file, file.size());
    if (mapped == nullptr) {
      MESSAGE("skipped: this file system gives no leases");
      return;
    }
    CHECK(mapped->at(bytes.size() - 9, 10) == nullptr);
    const vernier::File another(saved.model(), O_RDONLY);
    CHECK(vernier::MappedFile::of(another, another.size() + 1) == nullptr);  // another size than when its header was read
    for (const std::size_t place : {std::size_t{0}, std::size_t{5000}, bytes.size() - 9}) {
      CHECK(std::string(mapped->at(place, 9), 9) == bytes.substr(place, 9));
    }
    CHECK(Descriptor(saved.model(), O_WRONLY | O_NONBLOCK).number == -1);
    CHECK(errno == EWOULDBLOCK);
    CHECK_FALSE(mapped->is_leased());  // it lets go when somebody has come
    CHECK(mapped->at(0, 9) == nullptr);
  }
  CHECK(Descriptor(saved.model(), O_WRONLY | O_NONBLOCK).number >= 0);
}

TEST_CASE("checkpoint into: who wants to write meanwhile is let in, and the values are right all the same") {
  const Saved saved;
  std::atomic<bool> is_done = false;
  auto writer = std::async(std::launch::async, [&] {
    while (!is_done) {
      const Descriptor another(saved.model(), O_WRONLY | O_NONBLOCK);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int i = 0; i < 100; ++i) {
    const auto live = other_values(some_model());
    CHECK(saved.into(live) == Thrown{});
    check_equal(live, some_model());
  }
  is_done = true;
  writer.get();
}

TEST_CASE("checkpoint into: other dtypes and strides are converted, and a tied weight gets the last of its values") {
  const Saved saved;
  auto live = other_values(some_model());
  live["h.0.bias"] = torch::zeros({1024});
  const auto* memory = live["h.0.bias"].const_data_ptr();
  live["h.0.weight"] = torch::zeros({1024, 301}).t();
  CHECK(saved.into(live) == Thrown{});
  CHECK(live["h.0.weight"].equal(some_model()["h.0.weight"]));
  CHECK(live["h.0.bias"].equal(some_model()["h.0.bias"].to(torch::kFloat)));
  CHECK(live["h.0.bias"].const_data_ptr() == memory);

  const auto tied = saved.folder / "step-00000020";
  const auto a = torch::randn({64, 64}), b = torch::randn({64, 64}), shared = torch::zeros({64, 64});
  vernier::write_checkpoint(tied, {}, {{"in", a}, {"out", b}}, {});
  vernier::read_checkpoint_into(tied, {{"in", shared}, {"out", shared}});
  CHECK(shared.equal(b));
  std::vector<float> buffer(64 * 64 + 64);  // which nobody knows to be one
  const auto first = torch::from_blob(buffer.data(), {64, 64}), second = torch::from_blob(buffer.data() + 64, {64, 64});
  vernier::read_checkpoint_into(tied, {{"in", first}, {"out", second}});
  CHECK(second.equal(b));
  CHECK(first[0].equal(a[0]));
  const auto whole = torch::zeros({128, 64});  // parts of one memory
  vernier::read_checkpoint_into(tied, {{"in", whole.narrow(0, 0, 64)}, {"out", whole.narrow(0, 64, 64)}});
  CHECK(whole.equal(torch::cat({a, b})));
}

TEST_CASE("checkpoint into: version 1, which was one file, is read too") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000010";
  fs::create_directory(path);
  vernier::save_safetensors(path + "/state.safetensors", {{"model/w", torch::full({5}, 2.0)}, {"run/step", torch::ones({})}},
                            {{"format", "vernier.checkpoint 1"}, {"step", "10"}, {"run", "old"}, {"torch", "2.11.0"}});
  const Tensors live = {{"w", torch::zeros({5})}};
  CHECK(vernier::read_checkpoint_into(path, live).version == 1);
  CHECK(live.at("w").equal(torch::full({5}, 2.0)));
  const auto file = path + "/state.safetensors: tensor '";
  const Tensors more = {{"w", torch::zeros({5})}, {"x", torch::zeros({5})}}, wider = {{"w", torch::zeros({2, 5})}};
  CHECK(thrown_by([&] { vernier::read_checkpoint_into(path, more); }) == failed(file + "x': it is not in the file"));
  CHECK(says(thrown_by([&] { vernier::read_checkpoint_into(path, wider); }).text, file + "w': it is "));
  CHECK(more.at("w").equal(torch::zeros({5})));
}

TEST_CASE("checkpoint into: what is damaged or does not fit is refused, and the live tensors are as they were") {
  const Saved saved;
  const auto live = other_values(some_model());
  const auto untouched = [&] { check_equal(live, other_values(some_model())); };
  const auto good = read_text(saved.model());
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    auto bytes = good;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    std::ofstream(saved.model(), std::ios::binary | std::ios::trunc) << bytes;
    CHECK(says(saved.into(live).text, saved.model() + ": "));
  }
  std::ofstream(saved.model(), std::ios::binary | std::ios::trunc) << good.substr(0, good.size() / 2);
  CHECK(says(saved.into(live).text, "is cut short"));
  std::ofstream(saved.model(), std::ios::binary | std::ios::trunc) << good;
  untouched();

  auto more = live;
  more["unknown"] = torch::zeros({1});
  CHECK(saved.into(more) == failed(saved.model() + ": tensor 'unknown': it is not in the file"));
  for (const auto& odd : {torch::Tensor(), torch::zeros({1}).expand({301, 1024}),
                          torch::empty({301, 1024}, torch::kMeta), torch::zeros({301, 1024}).to_sparse()}) {
    auto unfit = live;
    unfit["h.0.weight"] = odd;
    CHECK(saved.into(unfit) == failed(saved.model() + ": tensor 'h.0.weight': the live one has no memory of its own for each "
                                                      "element"));
  }
  auto made_elsewhere = live;
  {
    const c10::InferenceMode inference;
    made_elsewhere["h.0.weight"] = torch::zeros({301, 1024});
  }
  CHECK(says(saved.into(made_elsewhere).text, "tensor 'h.0.weight': the live one was made in inference mode"));
  auto wider = live;
  wider["h.0.weight"] = torch::zeros({301, 1025});
  CHECK(saved.into(wider) ==
        failed(saved.model() + ": tensor 'h.0.weight': it is F32 [301, 1024], and the live one [301, 1025]"));
  untouched();
  CHECK(saved.into(live) == Thrown{});
  check_equal(live, some_model());
}
