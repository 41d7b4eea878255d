// Data to train on, one sample at a time. A dataset of your own implements size() and get(); data_loader.h makes
// batches of it, readers.h has datasets for files.
//
//   auto digits = vernier::transform(vernier::idx_dataset("images.gz", "labels.gz"),
//                                    {vernier::to_float(), vernier::normalize({0.13}, {0.31})});
//   auto [training, held_out] = vernier::split(digits, 0.1, /*seed=*/1);
#pragma once

#include <ATen/core/Generator.h>
#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// The tensors of one sample on the CPU, without a dimension for the batch: {input, target}, or what a dataset has.
using Sample = std::vector<torch::Tensor>;

// The random numbers of one sample, for augmentation. They depend only on the run's seed, the epoch and the index of
// the sample, so they are the same for any number of workers. It is SplitMix64 (Steele et al., OOPSLA 2014), and fits
// std::shuffle and the distributions of <random>, whose results differ between standard libraries.
class VERNIER_API Random {
 public:
  Random(std::uint64_t seed, std::int64_t epoch, std::int64_t index);
  using result_type = std::uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }
  result_type operator()();
  double uniform(double from = 0, double to = 1);  // below `to`
  std::int64_t below(std::int64_t bound);          // 0 to bound - 1; bound is at least 1
  at::Generator generator();  // a new one for LibTorch's functions: at::rand({3}, random.generator())

 private:
  std::uint64_t state_;
};

// Worker threads call all functions, several at the same time, so they must not change the dataset. Gradients are off.
class VERNIER_API Dataset {
 public:
  virtual ~Dataset();
  virtual std::int64_t size() const = 0;  // number of samples; it never changes
  // Returns sample `index`, 0 to size() - 1. An exception ends the run with an error that names where(index).
  virtual Sample get(std::int64_t index, Random& random) const = 0;
  // Returns the samples `indices` (int64, 1-D) stacked, dimension 0 the sample, if the dataset can do that faster than
  // one by one and uses no random numbers; else nothing, as by default. Data in memory do.
  virtual std::optional<Sample> get_batch(const torch::Tensor& indices) const;

  // Returns the origin of a sample, for errors: "'train.csv' line 17". By default "sample 17".
  virtual std::string where(std::int64_t index) const;
  // Identifies the data, so that a run is not resumed with others. By default the size; files add a checksum.
  virtual std::string fingerprint() const;
  // The sizes of the parts that are best read one after the other, such as files; they add up to size().
  virtual std::vector<std::int64_t> shards() const;
};
using DatasetPtr = std::shared_ptr<const Dataset>;

// Samples in memory: sample i is {tensors[0][i], tensors[1][i], …}. Throws Error if their sizes differ.
VERNIER_API DatasetPtr tensor_dataset(std::vector<torch::Tensor> tensors);
// Each sample changed by a function, which may draw random numbers.
VERNIER_API DatasetPtr map(DatasetPtr dataset, std::function<Sample(Sample sample, Random& random)> function);
// The samples `indices` (int64, 1-D), in this order; an index may come several times.
VERNIER_API DatasetPtr subset(DatasetPtr dataset, torch::Tensor indices);
// All samples of several datasets, in order. Each is a shard.
VERNIER_API DatasetPtr concat(std::vector<DatasetPtr> datasets);
// Two parts without common samples, drawn at random from the seed. The second has `share` of the samples, rounded up.
VERNIER_API std::pair<DatasetPtr, DatasetPtr> split(const DatasetPtr& dataset, double share, std::uint64_t seed);

// Any map-style dataset of torch::data, such as torch::data::datasets::MNIST. Its get(index) must be safe to call from
// several threads. to_sample turns what it returns into a Sample; for torch::data::Example<> leave it out.
template <class TorchDataset, class ToSample>
DatasetPtr torch_dataset(TorchDataset dataset, ToSample to_sample) {
  class Adaptor final : public Dataset {
   public:
    Adaptor(TorchDataset dataset, ToSample to_sample)
        : dataset_(std::move(dataset)), to_sample_(std::move(to_sample)) {}
    std::int64_t size() const override { return static_cast<std::int64_t>(*dataset_.size()); }
    Sample get(std::int64_t index, Random&) const override {
      return to_sample_(dataset_.get(static_cast<std::size_t>(index)));
    }

   private:
    mutable TorchDataset dataset_;
    ToSample to_sample_;
  };
  return std::make_shared<Adaptor>(std::move(dataset), std::move(to_sample));
}
template <class TorchDataset>
DatasetPtr torch_dataset(TorchDataset dataset) {
  return torch_dataset(std::move(dataset), [](auto example) { return Sample{example.data, example.target}; });
}

}  // namespace vernier
