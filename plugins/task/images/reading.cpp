#include "reading.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

namespace {

class MeasuredDataset final : public vernier::Dataset {
 public:
  MeasuredDataset(vernier::DatasetPtr images, std::string moments)
      : images_(std::move(images)), moments_(std::move(moments)) {}
  std::int64_t size() const override { return images_->size(); }
  vernier::Sample get(std::int64_t index, vernier::Random& random) const override {
    return images_->get(index, random);
  }
  std::optional<vernier::Sample> get_batch(const torch::Tensor& indices) const override {
    return images_->get_batch(indices);
  }
  std::string where(std::int64_t index) const override { return images_->where(index); }
  std::string fingerprint() const override { return images_->fingerprint() + moments_; }
  std::vector<std::int64_t> shards() const override { return images_->shards(); }

 private:
  vernier::DatasetPtr images_;
  std::string moments_;
};

// Neighbours in the returned order are far from each other in the dataset, so that a part of it is a fair sample.
std::vector<std::int64_t> spread(std::int64_t size) {
  auto step = std::max<std::int64_t>(1, static_cast<std::int64_t>(0.618 * static_cast<double>(size)));
  while (std::gcd(step, size) > 1) ++step;
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0, at = 0; i < size; ++i, at = (at + step) % size) order.push_back(at);
  return order;
}

// Calls `use` with each index, on several threads, until it returns false. Returns the errors by index, so that the
// first one is named whichever thread found it.
template <class Use>
std::map<std::int64_t, std::string> on_threads(const std::vector<std::int64_t>& indices, const Use& use) {
  std::map<std::int64_t, std::string> errors;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) {
    for (auto i = next++; i < indices.size(); i = next++) {
      try {
        if (!use(indices[i])) return;
      } catch (...) {
        const std::scoped_lock lock(mutex);
        errors[indices[i]] = vernier::caught().message;
      }
    }
  });
  return errors;
}

}  // namespace

torch::Tensor pixels_of(const vernier::Dataset& images, std::int64_t index) {
  vernier::Random none(0, 0, index);
  try {
    return images.get(index, none).at(0);
  } catch (const vernier::Error& error) {
    const std::string reason = error.what(), place = images.where(index);
    vernier::refuse(reason.find(place) == std::string::npos ? place + ": " + reason : reason);
  }
}

std::int64_t require_readable(const vernier::Dataset& images, double seconds, const vernier::Run* run) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<std::int64_t> read = 0;
  const auto refused = on_threads(spread(images.size()), [&](std::int64_t index) {
    if (std::chrono::steady_clock::now() > end || (run != nullptr && run->is_stopping())) return false;
    pixels_of(images, index);
    ++read;
    return true;
  });
  if (refused.empty()) return read;
  const auto others = std::ssize(refused) - 1;
  vernier::refuse(
      refused.begin()->second +
      (others > 0 ? c10::str("; ", others, others == 1 ? " other is" : " others are", " refused too") : ""));
}

Moments moments_of(const vernier::Dataset& images, std::int64_t channels) {
  constexpr std::int64_t most = 1024;
  const auto every = (images.size() + most - 1) / most;
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < images.size(); i += every) chosen.push_back(i);
  auto sums = at::zeros({2, channels}, torch::kInt64);
  std::int64_t pixels = 0;
  std::mutex mutex;
  const auto refused = on_threads(chosen, [&](std::int64_t index) {
    auto image = pixels_of(images, index).to(torch::kInt64);
    if (image.dim() == 4) image = image.transpose(0, 1);  // the channels of a clip
    image = image.reshape({channels, -1});
    const auto sum = image.sum(1), squares = image.square().sum(1);
    const std::scoped_lock lock(mutex);
    sums[0] += sum;
    sums[1] += squares;
    pixels += image.size(1);
    return true;
  });
  constexpr double seconds = 10;
  if (!refused.empty()) require_readable(images, seconds, nullptr);  // counts them
  if (!refused.empty()) vernier::refuse(refused.begin()->second);
  const auto moments = sums.to(torch::kFloat64).div_(static_cast<double>(pixels));
  Moments all;
  for (std::int64_t c = 0; c < channels; ++c) {
    const double mean = moments[0][c].item<double>();
    const double variance = moments[1][c].item<double>() - mean * mean;
    all.mean.push_back(mean / 255);
    all.std.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1);
  }
  return all;
}

vernier::DatasetPtr with_moments(vernier::DatasetPtr images, const Moments& moments) {
  std::string text = ", mean";
  for (const double mean : moments.mean) {
    text += c10::str(" ", std::lround(mean * 1000));  // coarse: processors round a resized image differently
  }
  return std::make_shared<MeasuredDataset>(std::move(images), text + " of 1000");
}
