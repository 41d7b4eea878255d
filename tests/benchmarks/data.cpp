// The cost of feeding a model: batches of 32 images of 224 x 224, cut at random from 512 images of 256 x 256 in one
// .npy file, mirrored, as float32, normalized. Rivals that do the same with the same file and two workers:
// torch::data's loader, and PyTorch's DataLoader where python3 has torch 2.11 (data_rival.py). Bar: faster than both.
// Then a small convolutional network on one thread, alone and fed by one worker: bar 0.95 of its rate where there are
// two cores. Then the memory of 100,000 batches of a dataset in memory: bar 16 MB more than after 1,000.
//
//   data [--check]     --check: exits with 1 where a bar is missed
#include <torch/torch.h>
#include <unistd.h>
#include <vernier/data/data_loader.h>
#include <vernier/data/numpy.h>
#include <vernier/data/transforms.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

#include "compare.h"
#include "python_rival.h"

namespace {

constexpr std::int64_t images = 512, side = 256, cut = 224, batch_size = 32, workers = 2;
const std::vector<double> mean = {0.485, 0.456, 0.406}, deviation = {0.229, 0.224, 0.225};

// Version 1.0 of NumPy's format, with a header of 128 bytes.
void write_npy(const std::string& path, const std::string& dtype, const std::string& shape, const torch::Tensor& data) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header << '\n';
  file.write(static_cast<const char*>(data.const_data_ptr()), static_cast<std::streamsize>(data.nbytes()));
}

// The same in torch::data.
class Images final : public torch::data::datasets::Dataset<Images> {
 public:
  Images(torch::Tensor images, torch::Tensor labels) : images_(std::move(images)), labels_(std::move(labels)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    const auto at = torch::randint(side - cut + 1, {2}, torch::kInt64);
    auto image = images_[i].narrow(1, at[0].item<std::int64_t>(), cut).narrow(2, at[1].item<std::int64_t>(), cut);
    if (torch::rand({}).item<float>() < 0.5F) image = image.flip({2});
    image = image.to(torch::kFloat32).div_(255).sub_(mean_).div_(deviation_);
    return {image, labels_[i]};
  }
  std::optional<std::size_t> size() const override { return images; }

 private:
  torch::Tensor images_, labels_;
  torch::Tensor mean_ = torch::tensor(mean, torch::kFloat32).view({3, 1, 1});
  torch::Tensor deviation_ = torch::tensor(deviation, torch::kFloat32).view({3, 1, 1});
};

vernier::DataLoader make_loader(const std::string& folder, std::int64_t count) {
  return vernier::DataLoader(
      vernier::transform(vernier::numpy_dataset({folder + "/images.npy", folder + "/labels.npy"}),
                         {vernier::random_crop(cut, cut), vernier::random_flip(), vernier::to_float(),
                          vernier::normalize(mean, deviation)}),
      {.batch_size = batch_size, .workers = count});
}

bool compare_loaders(const std::string& folder) {
  auto loader = make_loader(folder, workers);
  auto torch_loader = torch::data::make_data_loader(
      Images(vernier::read_npy(folder + "/images.npy"), vernier::read_npy(folder + "/labels.npy"))
          .map(torch::data::transforms::Stack<>()),
      torch::data::samplers::RandomSampler(images),
      torch::data::DataLoaderOptions().batch_size(batch_size).workers(workers));
  std::optional<decltype(torch_loader->begin())> place;
  const auto torch_next = [&] {
    if (place && ++*place == torch_loader->end()) place.reset();
    if (!place) place.emplace(torch_loader->begin());
    (*place)->data.const_data_ptr();
  };
  Python python("data_rival.py", {folder});
  std::vector<Rival> rivals = {{"vernier::DataLoader", [&] { loader.next(); }}, {"torch::data", torch_next}};
  if (python.has("loader")) {
    rivals.push_back({"PyTorch's DataLoader", {}, [&](int times) { python.call("loader " + std::to_string(times)); }});
  }
  const auto done = compare("A batch of 32 images of 224 x 224, two workers", rivals, 15, 16);
  bool is_met = true;
  for (std::size_t i = 1; i < done.size(); ++i) is_met = is_met && done[i].ratio(done[0]) > 1;
  std::printf("  bar, faster than the others: %s\n", is_met ? "met" : "missed");
  return is_met;
}

bool compare_models(const std::string& folder) {
  torch::nn::Sequential model;
  for (const auto& [in, out] : {std::pair(3, 32), std::pair(32, 64), std::pair(64, 64)}) {
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1)));
    model->push_back(torch::nn::ReLU());
  }
  at::set_num_threads(1);
  auto loader = make_loader(folder, 1);
  const auto batch = loader.next();
  const auto step = [&](const torch::Tensor& input) { model->forward(input).mean().backward(); };
  const auto done = compare(
      "A step of a small convolutional network on one thread",
      {{"alone", [&] { step(batch.tensors[0]); }}, {"fed by one worker", [&] { step(loader.next().tensors[0]); }}}, 9,
      6);
  const double rate = 1 / done[1].ratio(done[0]);
  std::printf("  rate of the model: %.3f of that alone; bar 0.95: %s\n", rate, rate >= 0.95 ? "met" : "missed");
  return rate >= 0.95;
}

double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

bool compare_memory() {
  vernier::DataLoader loader(vernier::tensor_dataset({torch::rand({10'000, 16}), torch::arange(10'000)}),
                             {.batch_size = 32, .workers = workers});
  for (int i = 0; i < 1'000; ++i) loader.next();
  const double before = resident_mb();
  for (int i = 0; i < 99'000; ++i) loader.next();
  const double more = resident_mb() - before;
  std::printf("Memory of 100,000 batches: %+.1f MB after the first 1,000; bar 16: %s\n", more,
              more < 16 ? "met" : "missed");
  return more < 16;
}

}  // namespace

int main(int argc, char** argv) {
  torch::manual_seed(1);
  char folder[] = "/tmp/vernier-data-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  const std::string path = folder;
  write_npy(path + "/images.npy", "|u1", "(512, 3, 256, 256)",
            torch::randint(256, {images, 3, side, side}, torch::kUInt8));
  write_npy(path + "/labels.npy", "<i8", "(512,)", torch::randint(10, {images}, torch::kInt64));
  const bool are_met[] = {compare_loaders(path), compare_models(path), compare_memory()};
  ::unlink((path + "/images.npy").c_str());
  ::unlink((path + "/labels.npy").c_str());
  ::rmdir(folder);
  const bool checks = argc > 1 && std::string_view(argv[1]) == "--check";
  return checks && !(are_met[0] && are_met[1] && are_met[2]) ? 1 : 0;
}
