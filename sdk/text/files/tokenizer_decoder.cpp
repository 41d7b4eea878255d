// `decoder` of tokenizer.json.
#include <utility>

#include "text/unicode/unicode.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

using Decoding = DecodeStep::Kind;

std::size_t count_of(const JsonPart& part) {
  const auto number = part.number();
  if (number < 0) part.refuse("is negative");
  return static_cast<std::size_t>(number);
}

std::string text_or(const JsonPart& part, const char* otherwise) {
  return part.is_null() ? otherwise : part.text();
}

DecodeStep strip_step(const JsonPart& part) {
  DecodeStep step{.kind = Decoding::strip, .from = part.member("content").text()};
  if (step.from.empty() || character_at(step.from, 0).size != step.from.size()) {
    part.member("content").refuse("is not one character");
  }
  step.begin = count_of(part.member("start"));
  step.end = count_of(part.member("stop"));
  return step;
}

DecodeStep step_of(const JsonPart& part) {
  const auto type = part.type();
  constexpr std::pair<std::string_view, Decoding> plain[] = {
      {"ByteLevel", Decoding::byte_level}, {"ByteFallback", Decoding::byte_fallback}, {"Fuse", Decoding::fuse}};
  for (const auto& [name, kind] : plain) {
    if (type == name) return {.kind = kind};
  }
  if (type == "Strip") return strip_step(part);
  if (type == "Replace") {
    const auto pattern = read_pattern(part.member("pattern"));
    return {
        .kind = Decoding::replace, .from = pattern.text, .to = part.member("content").text(), .regex = pattern.regex};
  }
  if (type == "Metaspace") {
    require_text(part.member("replacement"), space_mark);
    return {.kind = Decoding::metaspace, .drops_first = metaspace_scheme(part) != "never"};
  }
  if (type == "WordPiece") {
    return {.kind = Decoding::word_piece,
            .from = text_or(part.member("prefix"), "##"),
            .cleans = part.flag("cleanup", true)};
  }
  if (type == "BPEDecoder") {
    DecodeStep step{.kind = Decoding::bpe_suffix, .from = text_or(part.member("suffix"), "</w>")};
    if (step.from.empty()) part.member("suffix").refuse("is empty");
    return step;
  }
  refuse_type(part, "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, WordPiece, BPEDecoder and Sequence");
}

}  // namespace

void read_decoder(const JsonPart& decoder, TokenizerFile& file) {
  for (const auto& part : parts_of_sequence(decoder, "decoders")) file.decoder.push_back(step_of(part));
  if (decoder.is_null()) file.decoder.push_back({.kind = Decoding::spaces});
}

}  // namespace vernier
