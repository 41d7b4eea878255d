// Chats as the template of a tokenizer's folder writes them, and which of their tokens are learned.
#pragma once

#include <vernier/text/tokenizer.h>

#include <string>
#include <utility>
#include <vector>

#include "language_forms.h"
#include "text/chat_template.h"

namespace vernier {

// Any thread may call the functions.
class TemplateChats {
 public:
  // Throws Error if the folder has no template.
  TemplateChats(const Tokenizer& tokenizer, const std::string& folder);

  // Returns the tokens of the text that the template makes, special ones included, as transformers'
  // apply_chat_template does. Learned are those of {% generation %}, as in its mask of the assistant's tokens. Without
  // such marks an answer begins where generation would begin, and ends with the added token behind it. Throws Error
  // where the template hides that.
  // length: answers behind so many tokens are not looked for.
  TokenizedText tokenized(const std::vector<ChatMessage>& messages, std::size_t length, bool learns_all) const;
  // The added token that ends an answer; "" if there is none.
  std::string end_of_answer() const;

 private:
  using Range = std::pair<std::size_t, std::size_t>;  // begin and end
  // The bytes of a text that are the answer, for the message of that number.
  Range bytes_of(const std::string& whole, OrderedJson messages, std::size_t number) const;
  Range answer_in(const std::string& whole, const OrderedJson& messages, std::size_t number,
                  const std::vector<TokenId>& ids) const;  // its tokens, and the added one that ends it
  // The tokens of a range of bytes, with those that lie in it only in part.
  Range tokens_of(const Range& bytes, const std::string& whole, const std::vector<TokenId>& ids) const;
  // How many tokens end before a byte. with_cut: with one that reaches over it.
  std::size_t tokens_before(std::size_t byte, const std::string& whole, const std::vector<TokenId>& ids,
                            bool with_cut) const;
  bool is_white(TokenId id) const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
};

}  // namespace vernier
