// my_name: trains with several processes, which exchange files in a folder that all of them see.
//   folder = "my_name_ranks"   made if it is not there
// The launcher says which rank a process is: `vernier launch -n 2 run.toml`.
//
// This file is a complete plugin. Replace the files of gather() with your own network: the rest is made of it.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <vernier/launch_place.h>
#include <vernier/sdk.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

class MyName final : public vernier::Distributed {
 public:
  // Reads the options and does nothing else. `vernier plugins distributed/my_name` prints what is read here.
  explicit MyName(vernier::Options& options, vernier::LaunchPlace place = vernier::place_in_environment())
      : place_(std::move(place)), folder_(options.get("folder", "my_name_ranks", "folder that all ranks see")) {}
  // Removes the last file. A rank has read those of an exchange once it has removed its own of the one before.
  ~MyName() override {
    std::error_code none;
    for (std::int64_t r = 0; r < ranks(); ++r) waits_for(file_of(exchange_ - 1, r), /*there=*/false, 1);
    std::filesystem::remove(file_of(exchange_, rank()), none);
  }

  std::int64_t rank() const override { return place_.rank; }
  std::int64_t ranks() const override { return place_.ranks; }

  // Returns the bytes of each rank. All ranks call the same functions in the same order, so exchanges are numbered.
  std::vector<std::string> gather(const std::string& bytes) override {
    if (ranks() == 1) return {bytes};
    std::filesystem::create_directories(folder_);
    const auto own = file_of(++exchange_, rank());
    if (std::filesystem::exists(own)) vernier::refuse(own + ": is of an earlier run; remove its folder first");
    std::ofstream(own + ".part", std::ios::binary) << bytes;
    std::filesystem::rename(own + ".part", own);  // whoever sees the file sees all of it
    std::vector<std::string> all;
    for (std::int64_t r = 0; r < ranks(); ++r) all.push_back(r == rank() ? bytes : read(file_of(exchange_, r)));
    std::filesystem::remove(file_of(exchange_ - 1, rank()));  // all ranks have read it, and come to this exchange
    return all;
  }

  // Called after backward: the gradients, and some numbers of the trainer, become their sums over all ranks.
  void all_reduce(vernier::Run& run, torch::Tensor numbers) override {
    for (const auto& parameter : run.parameters) {
      auto& gradient = parameter.model.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(parameter.model);
      sum(gradient)();
    }
    sum(numbers)();
  }

  // Adds up in the order of the ranks, so that all of them have the same bits. Nothing is left for later.
  std::function<void()> sum(torch::Tensor numbers) override {
    const auto own = numbers.detach().cpu().contiguous();
    auto total = at::zeros_like(own);
    for (auto& bytes : gather(bytes_of(own))) total += at::from_blob(bytes.data(), own.sizes(), own.options());
    numbers.detach().copy_(total);
    return [] {};
  }

  // The tensors of each rank replace those of the others: the first weights, and buffers.
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks) override {
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      for (const auto& tensor : of_ranks[r]) {
        const auto own = tensor.detach().cpu().contiguous();
        auto bytes = gather(bytes_of(own))[r];
        tensor.detach().copy_(at::from_blob(bytes.data(), own.sizes(), own.options()));
      }
    }
  }

 private:
  static std::string bytes_of(const torch::Tensor& tensor) {
    return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
  }
  std::string file_of(std::int64_t exchange, std::int64_t rank) const {
    return c10::str(folder_, "/", place_.port, "-", place_.attempt, "-", exchange, "-of-rank-", rank);
  }
  static bool waits_for(const std::string& file, bool there, int seconds) {
    std::error_code none;
    for (int waited = 0; std::filesystem::exists(file, none) != there; ++waited) {
      if (waited == 1000 * seconds) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  static std::string read(const std::string& file) {
    if (!waits_for(file, /*there=*/true, 60)) throw vernier::Error(file + ": did not come, so its rank is lost");
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  vernier::LaunchPlace place_;
  std::string folder_;
  std::int64_t exchange_ = 0;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
