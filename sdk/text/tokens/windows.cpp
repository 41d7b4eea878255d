// Windows of tokens in a mapped file.
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/text/token_data.h>

#include <algorithm>
#include <cstring>

#include "base/parts.h"
#include "token_layout.h"

namespace vernier {

namespace {

// Calls work(Token()) with the unsigned type of a token: a negative one is above every vocabulary.
template <class Work>
auto with_token_type(const std::string& type, const Work& work) {
  switch (width_of_token(type)) {
    case 1:
      return work(std::uint8_t());
    case 2:
      return work(std::uint16_t());
    case 4:
      return work(std::uint32_t());
    default:
      return work(std::uint64_t());
  }
}

[[noreturn]] void refuse_token(const MappedFile& file, const TokenLayout& layout, std::uint64_t token,
                               std::size_t place, std::int64_t vocabulary) {
  const auto bits = 64 - 8 * width_of_token(layout.type);
  const auto with_sign = static_cast<std::int64_t>(token << bits) >> bits;
  file.refuse(c10::str("has the token ", layout.type.starts_with("u") ? c10::str(token) : c10::str(with_sign),
                       " at place ", place, ", read as ", layout.type, ", and the vocabulary ", vocabulary,
                       layout.is_guessed ? "; give the type of the tokens with token_type, or make them with the "
                                           "model's tokenizer"
                                         : "; make the file with the model's tokenizer"));
}

template <class Token>
class WindowDataset final : public Dataset {
 public:
  WindowDataset(MappedFilePtr file, const TokenLayout& layout, const WindowOptions& options)
      : file_(std::move(file)), layout_(layout), options_(options) {
    if (options_.stride == 0) options_.stride = options_.length;
    if (options_.length < 1 || options_.stride < 1 || options_.vocabulary < 0) {
      file_->refuse("cannot be cut into windows: length and stride must be at least 1, vocabulary at least 0");
    }
    if (layout.count - 1 < options_.length) {
      file_->refuse(c10::str("has ", layout.count, " tokens; a window of length ", options_.length, " needs ",
                             options_.length, " and the one after them"));
    }
    size_ = (layout.count - 1 - options_.length) / options_.stride + 1;
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
    const auto* bytes = file_->bytes().data() + layout_.begin + static_cast<std::size_t>(first) * sizeof(Token);
    for (std::int64_t i = 0; i <= options_.length; ++i, bytes += sizeof(Token)) {
      Token token;
      std::memcpy(&token, bytes, sizeof token);
      if (options_.vocabulary > 0 && token >= static_cast<std::uint64_t>(options_.vocabulary)) {
        refuse_token(*file_, layout_, token, static_cast<std::size_t>(first + i), options_.vocabulary);
      }
      if (i < options_.length) input[i] = static_cast<std::int64_t>(token);
      if (i > 0) target[i - 1] = static_cast<std::int64_t>(token);
    }
  }

  MappedFilePtr file_;
  TokenLayout layout_;
  WindowOptions options_;
  std::int64_t size_ = 0;
};

DatasetPtr windows_in(const MappedFilePtr& file, const TokenLayout& layout, const WindowOptions& options) {
  return with_token_type(layout.type, [&](auto token) -> DatasetPtr {
    return std::make_shared<WindowDataset<decltype(token)>>(file, layout, options);
  });
}

constexpr std::size_t part_of_tokens = 1 << 16, most_parts = tokens_looked_at / part_of_tokens;

std::size_t first_of_part(const TokenLayout& layout, std::size_t part, std::size_t parts) {
  const auto all = static_cast<std::size_t>(layout.count);
  if (parts < most_parts) return part * part_of_tokens;
  return static_cast<std::size_t>(static_cast<double>(all - part_of_tokens) / static_cast<double>(parts - 1) *
                                  static_cast<double>(part));
}

template <class Token>
std::uint64_t check_tokens_of(const MappedFile& file, const TokenLayout& layout, std::int64_t vocabulary) {
  const auto all = static_cast<std::size_t>(layout.count);
  const auto parts = std::min((all + part_of_tokens - 1) / part_of_tokens, most_parts);
  std::vector<std::uint64_t> largest(parts);
  for_each_part(parts, [&](std::size_t part) {
    const auto first = first_of_part(layout, part, parts);
    std::vector<Token> tokens(std::min(part_of_tokens, all - first));
    file.read(layout.begin + first * sizeof(Token), reinterpret_cast<char*>(tokens.data()),
              tokens.size() * sizeof(Token));
    largest[part] = std::ranges::max(tokens);
    if (vocabulary == 0 || largest[part] < static_cast<std::uint64_t>(vocabulary)) return;
    const auto wrong =
        std::ranges::find_if(tokens, [&](Token token) { return token >= static_cast<std::uint64_t>(vocabulary); });
    refuse_token(file, layout, *wrong, first + static_cast<std::size_t>(wrong - tokens.begin()), vocabulary);
  });
  return parts == 0 ? 0 : std::ranges::max(largest);
}

}  // namespace

std::int64_t check_tokens(const MappedFile& file, const TokenLayout& layout, std::int64_t vocabulary) {
  file.require_unchanged();
  return static_cast<std::int64_t>(with_token_type(
      layout.type, [&](auto token) { return check_tokens_of<decltype(token)>(file, layout, vocabulary); }));
}

TokenData read_tokens(const std::string& path, const WindowOptions& options) {
  const auto file = MappedFile::open(path);
  const auto layout = token_layout_of(*file, options);
  TokenData data;
  data.dataset = windows_in(file, layout, options);
  data.tokens = layout.count;
  data.type = layout.type;
  data.known_by = layout.known_by;
  data.largest = check_tokens(*file, layout, options.vocabulary);
  return data;
}

DatasetPtr token_dataset(const std::string& path, const WindowOptions& options) {
  return read_tokens(path, options).dataset;
}

DatasetPtr text_dataset(const std::string& path, const WindowOptions& options) {
  const auto file = MappedFile::open(path);
  return windows_in(file, bytes_layout_of(*file), options);
}

}  // namespace vernier
