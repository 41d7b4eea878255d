// The tokenizer that open_tokenizer() returns, with what the SDK itself needs besides: texts that come in parts.
#pragma once

#include <vernier/text/tokenizer.h>

#include <memory>
#include <mutex>

#include "segments.h"

namespace vernier {

class VERNIER_API TextTokenizer final : public Tokenizer {
 public:
  explicit TextTokenizer(const TokenizerFile& file);
  ~TextTokenizer() override;

  std::vector<TokenId> encode(std::string_view text, bool special) const override;
  std::vector<TokenId> encode_plain(std::string_view text, bool is_behind_token) const override;
  std::string decode(std::span<const TokenId> ids, bool keep_special) const override;
  std::optional<std::string> bytes(TokenId id) const override { return segments_->bytes(id); }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::optional<TokenId> id(std::string_view token) const override;
  bool is_added(TokenId id) const override {
    return id >= 0 && id < vocabulary_ && is_added_[static_cast<std::size_t>(id)];
  }
  std::optional<TokenId> end_of_text() const override { return end_of_text_; }
  std::string checksum() const override;

  // Adds the ids of a part of a text, valid UTF-8, without what the folder adds around a text. If each part but the
  // last ends where last_cut() says, all parts give the ids of the whole text.
  void encode_part(std::string_view part, Place begin, bool is_plain, std::vector<TokenId>& ids) const;
  // The last place at which the text may be cut, before which and behind which there are characters; 0 if there is
  // none. The text is valid UTF-8.
  std::size_t last_cut(std::string_view text) const;

  const std::vector<TokenId>& before_text() const { return before_; }
  const std::vector<TokenId>& after_text() const { return after_; }

 private:
  std::vector<TokenId> encode_whole(std::string_view text, Place begin, bool special, bool plain) const;
  void encode_segment(std::string_view segment, Place place, bool is_plain, Scratch& scratch,
                      std::vector<TokenId>& ids) const;
  std::unique_ptr<Scratch> borrow() const;

  std::int64_t vocabulary_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<bool> is_special_, is_added_;  // by id
  std::vector<TokenId> before_, after_;
  std::optional<TokenId> end_of_text_;
  std::unique_ptr<const Segments> segments_;
  AddedTokens in_text_, in_normalized_, all_;
  bool has_normalized_ = false;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> scratches_;  // scratches that no thread uses now
};

VERNIER_API std::shared_ptr<const TextTokenizer> open_text_tokenizer(const std::filesystem::path& folder);

}  // namespace vernier
