#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/index_select.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/data/dataset.h>
#include <vernier/data/split.h>
#include <vernier/data/stream.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "tasks/draw_below.h"
#include "tensor_dataset.h"

namespace vernier {

namespace {

class MapDataset final : public Dataset {
 public:
  MapDataset(DatasetPtr dataset, std::function<Sample(Sample, Random&)> function)
      : dataset_(std::move(dataset)), function_(std::move(function)) {}
  std::int64_t size() const override { return dataset_->size(); }
  Sample get(std::int64_t index, Random& random) const override {
    return function_(dataset_->get(index, random), random);
  }
  std::string where(std::int64_t index) const override { return dataset_->where(index); }
  std::string fingerprint() const override { return dataset_->fingerprint(); }
  std::vector<std::int64_t> shards() const override { return dataset_->shards(); }

 private:
  DatasetPtr dataset_;
  std::function<Sample(Sample, Random&)> function_;
};

class SubsetDataset final : public Dataset {
 public:
  SubsetDataset(DatasetPtr dataset, torch::Tensor indices)
      : dataset_(std::move(dataset)), indices_(indices.to(torch::kInt64).contiguous()) {
    for (std::int64_t i = 0; i < size(); ++i) {
      if (at(i) >= 0 && at(i) < dataset_->size()) continue;
      refuse(c10::str("a subset has index ", at(i), " and its dataset has ", dataset_->size(), " samples"));
    }
  }
  std::int64_t size() const override { return indices_.numel(); }
  Sample get(std::int64_t index, Random& random) const override { return dataset_->get(at(index), random); }
  std::optional<Sample> get_batch(const torch::Tensor& indices) const override {
    return dataset_->get_batch(indices_.index_select(0, indices));
  }
  std::string where(std::int64_t index) const override { return dataset_->where(at(index)); }
  std::string fingerprint() const override {
    return c10::str(size(), " samples, indices ", checksum_of_all({indices_}), ", of ", dataset_->fingerprint());
  }
  // Returns the dataset's shards as far as the subset has them. Neighbours of indices in another order are unknown.
  std::vector<std::int64_t> shards() const override {
    std::vector<std::int64_t> sizes;
    std::int64_t i = 0, end = 0;
    for (const auto all : dataset_->shards()) {
      const auto first = i;
      for (end += all; i < size() && at(i) < end; ++i) {
        if (i > 0 && at(i) < at(i - 1)) return {size()};
      }
      if (i > first) sizes.push_back(i - first);
    }
    return i == size() && !sizes.empty() ? sizes : std::vector{size()};
  }

 private:
  std::int64_t at(std::int64_t i) const { return indices_.const_data_ptr<std::int64_t>()[i]; }

  DatasetPtr dataset_;
  torch::Tensor indices_;
};

class ConcatDataset final : public Dataset {
 public:
  explicit ConcatDataset(std::vector<DatasetPtr> datasets) : datasets_(std::move(datasets)) {
    for (const auto& dataset : datasets_) ends_.push_back(size() + dataset->size());
  }
  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  Sample get(std::int64_t index, Random& random) const override {
    const auto [part, within] = find(index);
    return datasets_[part]->get(within, random);
  }
  std::string where(std::int64_t index) const override {
    const auto [part, within] = find(index);
    return datasets_[part]->where(within);
  }
  std::string fingerprint() const override {
    std::string all;
    for (const auto& dataset : datasets_) all += (all.empty() ? "" : ", ") + dataset->fingerprint();
    return all;
  }
  std::vector<std::int64_t> shards() const override {
    std::vector<std::int64_t> sizes;
    for (const auto& dataset : datasets_) {
      const auto parts = dataset->shards();
      sizes.insert(sizes.end(), parts.begin(), parts.end());
    }
    return sizes;
  }

 private:
  std::pair<std::size_t, std::int64_t> find(std::int64_t index) const {
    const auto part = static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    return {part, index - (part == 0 ? 0 : ends_[part - 1])};
  }

  std::vector<DatasetPtr> datasets_;
  std::vector<std::int64_t> ends_;
};

class TakenDataset final : public Dataset {
 public:
  explicit TakenDataset(std::vector<Sample> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return std::ssize(samples_); }
  Sample get(std::int64_t index, Random&) const override { return samples_[static_cast<std::size_t>(index)]; }
  std::string fingerprint() const override {
    std::vector<torch::Tensor> all;
    for (const auto& sample : samples_) all.insert(all.end(), sample.begin(), sample.end());
    return c10::str(size(), " samples of a stream, ", checksum_of_all(all));
  }

 private:
  std::vector<Sample> samples_;
};

}  // namespace

std::string checksum_of_all(const std::vector<torch::Tensor>& tensors) {
  Checksum sum;
  for (const auto& tensor : tensors) {
    const auto shape = c10::str(tensor.sizes(), tensor.scalar_type());
    sum.add(shape.data(), shape.size());
    const auto whole = tensor.detach().to(torch::kCPU).contiguous();
    sum.add(whole.const_data_ptr(), whole.nbytes());
  }
  return "XXH3 " + sum.digits();
}

TensorDataset::TensorDataset(std::vector<torch::Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) refuse("a dataset of tensors needs at least one tensor");
  for (const auto& tensor : tensors_) {
    if (tensor.dim() > 0 && tensor.size(0) == tensors_[0].size(0)) continue;
    refuse(c10::str("the tensors of a dataset have a different number of samples: ", tensors_[0].sizes(), " and ",
                    tensor.sizes()));
  }
}

Sample TensorDataset::get(std::int64_t index, Random&) const {
  Sample sample;
  for (const auto& tensor : tensors_) sample.push_back(tensor[index]);
  return sample;
}

std::optional<Sample> TensorDataset::get_batch(const torch::Tensor& indices) const {
  Sample batch;
  for (const auto& tensor : tensors_) batch.push_back(tensor.index_select(0, indices));
  return batch;
}

std::string TensorDataset::fingerprint() const {
  return c10::str(size(), " samples, ", checksum_of_all(tensors_));
}

Random::Random(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
    : state_(mixed(mixed(mixed(seed + 1) + static_cast<std::uint64_t>(epoch)) + static_cast<std::uint64_t>(index))) {}

std::uint64_t Random::operator()() {
  return mixed(state_ += 0x9e3779b97f4a7c15U);
}

double Random::uniform(double from, double to) {
  const double share = static_cast<double>((*this)() >> 11) * 0x1p-53;
  return std::min(from + share * (to - from), std::nextafter(to, from));
}

std::int64_t Random::below(std::int64_t bound) {
  if (bound < 1) throw Error(c10::str("there is no random number below ", bound));
  return static_cast<std::int64_t>(draw_below(static_cast<std::uint64_t>(bound), *this));
}

at::Generator Random::generator() {
  return at::make_generator<at::CPUGeneratorImpl>((*this)());
}

Dataset::~Dataset() = default;

std::optional<Sample> Dataset::get_batch(const torch::Tensor&) const {
  return {};
}

std::string Dataset::where(std::int64_t index) const {
  return c10::str("sample ", index);
}

std::string Dataset::fingerprint() const {
  return c10::str(size(), " samples");
}

std::vector<std::int64_t> Dataset::shards() const {
  return {size()};
}

Stream::~Stream() = default;

bool Stream::skip(std::int64_t) {
  return false;
}

Sample Stream::finish(Sample sample, Random&) const {
  return sample;
}

std::string Stream::fingerprint() const {
  return "a stream";
}

State Stream::save() const {
  State state;
  for (const auto& member : memory_) member.put(state);
  return state;
}

void Stream::load(const State& state) {
  for (const auto& member : memory_) member.get(state);
}

// Epoch -1 is for these samples, so that those of training have other random numbers.
DatasetPtr take(Stream& stream, std::int64_t samples, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  std::vector<Sample> taken;
  for (std::int64_t i = 0; i < samples; ++i) {
    Random random(seed, -1, i);
    auto sample = stream.next(random);
    taken.push_back(stream.finish(std::move(sample), random));
  }
  return std::make_shared<TakenDataset>(std::move(taken));
}

DatasetPtr tensor_dataset(std::vector<torch::Tensor> tensors) {
  return std::make_shared<TensorDataset>(std::move(tensors));
}

DatasetPtr map(DatasetPtr dataset, std::function<Sample(Sample, Random&)> function) {
  return std::make_shared<MapDataset>(std::move(dataset), std::move(function));
}

DatasetPtr subset(DatasetPtr dataset, torch::Tensor indices) {
  return std::make_shared<SubsetDataset>(std::move(dataset), std::move(indices));
}

DatasetPtr concat(std::vector<DatasetPtr> datasets) {
  return std::make_shared<ConcatDataset>(std::move(datasets));
}

std::pair<DatasetPtr, DatasetPtr> split(const DatasetPtr& dataset, double share, std::uint64_t seed) {
  const auto parts = split_random(dataset->size(), share, seed);
  return {subset(dataset, parts.training), subset(dataset, parts.held_out)};
}

}  // namespace vernier
