#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/data_loader.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

void require_equal_counts(const std::vector<Sample>& samples) {
  for (const auto& sample : samples) {
    if (sample.size() == samples.front().size()) continue;
    refuse(c10::str("the samples of a batch have different numbers of tensors: ", samples.front().size(), " and ",
                    sample.size()));
  }
}

std::vector<torch::Tensor> column(const std::vector<Sample>& samples, std::size_t i) {
  std::vector<torch::Tensor> tensors;
  tensors.reserve(samples.size());
  for (const auto& sample : samples) tensors.push_back(sample[i]);
  return tensors;
}

void require_sequence(const torch::Tensor& tensor) {
  if (tensor.dim() == 0)
    refuse("pad() and pack() are for tensors with at least one dimension, and a sample has a number");
}

// [rows, length, rest of the shape of a sample], filled with the value.
torch::Tensor filled(std::int64_t rows, std::int64_t length, const torch::Tensor& like, double value) {
  auto sizes = like.sizes().vec();
  sizes[0] = length;
  sizes.insert(sizes.begin(), rows);
  return at::full(sizes, value, like.options());
}

Batch padded(const std::vector<Sample>& samples, double value) {
  require_equal_counts(samples);
  Batch batch;
  batch.samples = static_cast<std::int64_t>(samples.size());
  for (std::size_t i = 0; i < samples.front().size(); ++i) {
    const auto tensors = column(samples, i);
    if (tensors.front().dim() == 0) {  // a label of the whole sequence
      batch.tensors.push_back(at::stack(tensors));
      continue;
    }
    std::int64_t longest = 0;
    for (const auto& tensor : tensors) longest = std::max(longest, tensor.size(0));
    auto all = filled(batch.samples, longest, tensors.front(), value);
    for (std::int64_t row = 0; row < batch.samples; ++row) {
      const auto& tensor = tensors[static_cast<std::size_t>(row)];
      all[row].narrow(0, 0, tensor.size(0)).copy_(tensor);
    }
    batch.tensors.push_back(std::move(all));
  }
  auto lengths = at::zeros({batch.samples}, torch::kInt64);
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    const auto& first = samples[static_cast<std::size_t>(row)].front();
    require_sequence(first);
    lengths.mutable_data_ptr<std::int64_t>()[row] = first.size(0);
    batch.tokens += first.size(0);
  }
  batch.tensors.push_back(std::move(lengths));
  return batch;
}

// The place where a sequence is put.
struct Place {
  std::int64_t row, first, number;
};

std::vector<Place> places(const std::vector<Sample>& samples, std::int64_t length) {
  struct Row {
    std::int64_t used = 0, sequences = 0;
  };
  std::vector<Row> rows;
  std::vector<Place> all;
  for (const auto& sample : samples) {
    for (const auto& tensor : sample) {
      require_sequence(tensor);
      if (tensor.size(0) != sample.front().size(0)) refuse("pack() needs samples whose tensors are equally long");
    }
    const auto size = sample.front().size(0);
    if (size > length)
      refuse(c10::str("a sequence of ", size, " does not fit into rows of ", length, "; cut it first"));
    auto row = std::ranges::find_if(rows, [&](const Row& each) { return each.used + size <= length; });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{});
    all.push_back({row - rows.begin(), row->used, ++row->sequences});
    row->used += size;
  }
  return all;
}

Batch packed(const std::vector<Sample>& samples, std::int64_t length, double value) {
  require_equal_counts(samples);
  const auto all = places(samples, length);
  Batch batch;
  for (const auto& place : all) batch.samples = std::max(batch.samples, place.row + 1);
  for (const auto& tensor : samples.front()) batch.tensors.push_back(filled(batch.samples, length, tensor, value));
  batch.tensors.push_back(at::zeros({batch.samples, length}, torch::kInt64));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto size = samples[i].front().size(0);
    const auto part = [&](const torch::Tensor& rows) { return rows[all[i].row].narrow(0, all[i].first, size); };
    for (std::size_t k = 0; k < samples[i].size(); ++k) part(batch.tensors[k]).copy_(samples[i][k]);
    part(batch.tensors.back()).fill_(all[i].number);
    batch.tokens += size;
  }
  return batch;
}

}  // namespace

Batch stack(const std::vector<Sample>& samples) {
  require_equal_counts(samples);
  Batch batch;
  batch.samples = static_cast<std::int64_t>(samples.size());
  for (std::size_t i = 0; i < samples.front().size(); ++i) {
    const auto tensors = column(samples, i);
    for (const auto& tensor : tensors) {
      if (tensor.sizes() == tensors.front().sizes()) continue;
      refuse(c10::str("the samples of a batch have different shapes, ", tensors.front().sizes(), " and ",
                      tensor.sizes(), ": give them one size, or collate them with pad()"));
    }
    batch.tensors.push_back(at::stack(tensors));
  }
  return batch;
}

Collate pad(double value) {
  return [value](const std::vector<Sample>& samples) { return padded(samples, value); };
}

Collate pack(std::int64_t length, double value) {
  if (length < 1) refuse(c10::str("rows of a length of ", length, " hold nothing"));
  return [length, value](const std::vector<Sample>& samples) { return packed(samples, length, value); };
}

}  // namespace vernier
