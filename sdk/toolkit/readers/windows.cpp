// Windows of tokens in a mapped file.
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/readers.h>

#include <cstring>

#include "mapped_file.h"

namespace vernier {

namespace {

template <class Token>
class WindowDataset final : public Dataset {
 public:
  WindowDataset(const std::string& path, const WindowOptions& options)
      : file_(MappedFile::open(path)), options_(options) {
    if (options_.stride == 0) options_.stride = options_.length;
    if (options_.length < 1 || options_.stride < 1 || options_.vocabulary < 0) {
      file_->refuse("cannot be cut into windows: length and stride must be at least 1, vocabulary at least 0");
    }
    const auto bytes = file_->bytes().size();
    if (bytes % sizeof(Token) != 0) {
      file_->refuse(c10::str("ends within a token: it has ", bytes, " bytes, and a token has ", sizeof(Token)));
    }
    const auto tokens = static_cast<std::int64_t>(bytes / sizeof(Token));
    if (tokens - 1 < options_.length) {
      file_->refuse(c10::str("has ", tokens, " tokens; a window of length ", options_.length, " needs ",
                             options_.length, " and the one after them"));
    }
    size_ = (tokens - 1 - options_.length) / options_.stride + 1;
  }
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, Random&) const override {
    file_->require_unchanged();
    auto inputs = at::empty({options_.length}, torch::kInt64), targets = at::empty_like(inputs);
    read(index, inputs.mutable_data_ptr<std::int64_t>(), targets.mutable_data_ptr<std::int64_t>());
    return {inputs, targets};
  }
  std::optional<Sample> get_batch(const torch::Tensor& indices) const override {
    file_->require_unchanged();
    auto inputs = at::empty({indices.numel(), options_.length}, torch::kInt64), targets = at::empty_like(inputs);
    auto* input = inputs.mutable_data_ptr<std::int64_t>();
    auto* target = targets.mutable_data_ptr<std::int64_t>();
    const auto all = indices.contiguous();
    const auto* index = all.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      read(index[i], input + i * options_.length, target + i * options_.length);
    }
    return Sample{inputs, targets};
  }
  std::string where(std::int64_t index) const override {
    const auto first = index * options_.stride;
    return c10::str("'", file_->path(), "' tokens ", first, " to ", first + options_.length);
  }
  std::string fingerprint() const override {
    return c10::str(size_, " windows of ", options_.length, " every ", options_.stride, ", ", file_->fingerprint());
  }

 private:
  void read(std::int64_t index, std::int64_t* input, std::int64_t* target) const {
    const auto first = index * options_.stride;
    const auto* bytes = file_->bytes().data() + static_cast<std::size_t>(first) * sizeof(Token);
    for (std::int64_t i = 0; i <= options_.length; ++i, bytes += sizeof(Token)) {
      Token token;
      std::memcpy(&token, bytes, sizeof token);
      if (options_.vocabulary > 0 && token >= options_.vocabulary) {
        file_->refuse(c10::str("has the token ", std::int64_t{token}, " at place ", first + i, ", and the vocabulary ",
                               options_.vocabulary));
      }
      if (i < options_.length) input[i] = token;
      if (i > 0) target[i - 1] = token;
    }
  }

  MappedFilePtr file_;
  WindowOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace

DatasetPtr token_dataset(const std::string& path, torch::ScalarType type, const WindowOptions& options) {
  switch (type) {
    case torch::kUInt8:
      return std::make_shared<WindowDataset<std::uint8_t>>(path, options);
    case torch::kUInt16:
      return std::make_shared<WindowDataset<std::uint16_t>>(path, options);
    case torch::kUInt32:
      return std::make_shared<WindowDataset<std::uint32_t>>(path, options);
    default:
      refuse(c10::str("tokens are read as kUInt8, kUInt16 or kUInt32, not ", type));
  }
}

DatasetPtr text_dataset(const std::string& path, const WindowOptions& options) {
  return token_dataset(path, torch::kUInt8, options);
}

}  // namespace vernier
