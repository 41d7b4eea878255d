// The template of a tokenizer's folder that turns messages into a text: Jinja, as apply_chat_template of Hugging Face's
// transformers 5 renders it.
#pragma once

#include <vernier/abi.h>

#include <optional>
#include <string>

#include "files/json.h"
#include "text/jinja/statements.h"

namespace vernier {

struct ChatText {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> generated;  // its bytes within {% generation %}: begin and end
};

class VERNIER_API ChatTemplate {
 public:
  // where: for messages. variables: further ones, such as bos_token. Throws Error if a text is not Jinja.
  ChatTemplate(const std::string& source, std::string where, OrderedJson variables = OrderedJson::object());
  // Reads chat_template.jinja, or else tokenizer_config.json; returns nothing if neither has a template.
  static std::optional<ChatTemplate> of_folder(const std::string& folder);

  static std::string source_in(const std::string& folder);  // "" if there is none

  // Returns the text of messages, an array of objects. add_generation_prompt: it ends where an answer begins. tools:
  // null, or an array that the template describes. Throws Error, with the line, where the template does.
  std::string render(const OrderedJson& messages, bool add_generation_prompt, const OrderedJson& tools = nullptr) const;
  // The same for training, where a text must not depend on the day: strftime_now is undefined.
  ChatText render_for_training(const OrderedJson& messages, bool add_generation_prompt) const;
  const std::string& where() const { return where_; }

 private:
  jinja::Run run(const OrderedJson& messages, bool add_generation_prompt, const OrderedJson& tools,
                 bool has_clock) const;

  std::string where_;
  OrderedJson variables_;
  jinja::Statement program_;
};

// Throws Error, with its place or "", for a message that no model of texts can read: without a role, or with an image.
VERNIER_API void require_messages(const OrderedJson& messages, const std::string& where);

}  // namespace vernier
