#include "template_chats.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

constexpr std::size_t most_messages = 1000;  // because each answer renders the whole chat again

// Texts in place of messages, which show where a template puts them: characters of private use. A chat that has these
// characters itself may be refused.
constexpr const char* mark = "\uE8F1\uE8F2\uE8F1";
constexpr const char* other_mark = "\uE8F3\uE8F2\uE8F3";

ChatTemplate template_in(const std::string& folder) {
  auto found = ChatTemplate::of_folder(folder);
  if (found) return std::move(*found);
  refuse("'" + folder + "' has no chat template: neither chat_template.jinja, nor chat_template in " +
         "tokenizer_config.json");
}

OrderedJson json_of(const std::vector<ChatMessage>& messages) {
  auto all = OrderedJson::array();
  for (const auto& message : messages) all.push_back({{"role", message.role}, {"content", message.content}});
  return all;
}

}  // namespace

TemplateChats::TemplateChats(const Tokenizer& tokenizer, const std::string& folder)
    : tokenizer_(tokenizer), template_(template_in(folder)) {}

bool TemplateChats::is_white(TokenId id) const {
  const auto text = tokenizer_.decode({{id}}, /*keep_special=*/true);
  return text.find_first_not_of(" \t\r\n") == std::string::npos;  // "▁" alone is decoded to ""
}

TemplateChats::Range TemplateChats::bytes_of(const std::string& whole, OrderedJson messages, std::size_t number) const {
  const auto require = [&](bool is_plain) {
    if (is_plain) return;
    refuse(c10::str(template_.where(), ": the chat template hides where the answer in message ", number + 1,
                    " begins or ends; put {% generation %} and {% endgeneration %} around answers there, or write the "
                    "chats as prompt and completion"));
  };
  const auto first = messages.begin(), at = first + static_cast<std::ptrdiff_t>(number);
  const OrderedJson before(OrderedJson::array_t(first, at));
  (*at)["content"] = mark;
  const auto marked = template_.render_for_training(messages, false).text;
  const auto place = marked.find(mark), end = place + std::string_view(mark).size();
  require(place != std::string::npos && marked.find(mark, end) == std::string::npos);
  const auto behind = std::string_view(marked).substr(end);
  auto begin = place;
  if (number > 0) {  // behind the message before, where generation would begin
    begin = common(marked, template_.render_for_training(before, true).text);
    (*(at - 1))["content"] = other_mark;
    const auto with_both = template_.render_for_training(messages, false).text;
    const auto other = with_both.rfind(other_mark), same = with_both.find(mark);
    require(other != std::string::npos && other < same);
    const auto between = same - other - std::string_view(other_mark).size();
    require(begin + between >= place);
  }
  require(whole.ends_with(behind) && whole.size() - behind.size() >= begin && common(whole, marked) >= begin);
  return {begin, whole.size() - behind.size()};
}

std::size_t TemplateChats::tokens_before(std::size_t byte, const std::string& whole, const std::vector<TokenId>& ids,
                                         bool with_cut) const {
  const auto part = tokenizer_.encode(whole.substr(0, byte), false);
  const auto same = common(ids, part);
  if (same == part.size()) return same;
  // Without what comes next, the text has other tokens at its end. Those of `ids` are counted by the bytes of their
  // texts, from a token that both have, since a tokenizer may drop a space before the first one.
  const auto from = same > 0 ? same - 1 : 0;
  const auto bytes = [&](const std::vector<TokenId>& tokens, std::size_t end) {
    return tokenizer_.decode(std::span(tokens).subspan(from, end - from), /*keep_special=*/true).size();
  };
  constexpr std::size_t of_broken = 8;  // a part of a character is decoded to more bytes than it has
  const auto wanted = bytes(part, part.size());
  auto count = same, reached = bytes(ids, same);
  for (auto end = same + 1; end <= ids.size() && reached < wanted; ++end) {
    const auto here = bytes(ids, end);
    if (here <= wanted) count = end, reached = here;
    if (here > wanted + of_broken) break;
  }
  return count + (with_cut && reached < wanted && count < ids.size() ? 1 : 0);
}

TemplateChats::Range TemplateChats::tokens_of(const Range& bytes, const std::string& whole,
                                              const std::vector<TokenId>& ids) const {
  const auto first = tokens_before(bytes.first, whole, ids, /*with_cut=*/false);
  return {first, std::max(first, tokens_before(bytes.second, whole, ids, /*with_cut=*/true))};
}

TemplateChats::Range TemplateChats::answer_in(const std::string& whole, const OrderedJson& messages, std::size_t number,
                                              const std::vector<TokenId>& ids) const {
  auto answer = tokens_of(bytes_of(whole, messages, number), whole, ids);
  auto end = answer.second;
  while (end < ids.size() && is_white(ids[end])) ++end;
  if (end < ids.size() && tokenizer_.is_added(ids[end])) answer.second = end + 1;
  return answer;
}

TokenizedText TemplateChats::tokenized(const std::vector<ChatMessage>& messages, std::size_t length,
                                       bool learns_all) const {
  const auto json = json_of(messages);
  const auto [whole, marked] = template_.render_for_training(json, false);
  TokenizedText chat{.ids = tokenizer_.encode(whole, false), .form = LanguageLine::Form::messages};
  chat.is_learned.resize(chat.ids.size(), learns_all);
  if (learns_all) return chat;
  const auto answers = static_cast<std::size_t>(std::ranges::count(messages, "assistant", &ChatMessage::role));
  const auto learned = static_cast<std::size_t>(std::ranges::count(messages, true, &ChatMessage::is_learned));
  std::size_t end = 0;
  const auto learn = [&](const Range& tokens) {
    end = tokens.second;
    const auto begin = chat.is_learned.begin();
    std::fill(begin + static_cast<std::ptrdiff_t>(tokens.first), begin + static_cast<std::ptrdiff_t>(end), true);
  };
  if (!marked.empty() && learned == answers) {  // an answer may have several marks
    for (auto bytes = marked.begin(); bytes != marked.end() && end <= length; ++bytes) {
      learn(tokens_of(*bytes, whole, chat.ids));
    }
    return chat;
  }
  if (messages.size() > most_messages) {
    refuse(
        c10::str("a chat of ", messages.size(), " messages takes too long; divide it into chats of ", most_messages));
  }
  auto mark = marked.begin();
  for (std::size_t i = 0; i < messages.size() && end <= length; ++i) {
    if (messages[i].role != "assistant") continue;
    const auto bytes = marked.size() == answers ? std::optional(*mark++) : std::nullopt;
    if (!messages[i].is_learned) continue;
    learn(bytes ? tokens_of(*bytes, whole, chat.ids) : answer_in(whole, json, i, chat.ids));
  }
  return chat;
}

std::string TemplateChats::end_of_answer() const {
  TokenizedText chat;
  try {
    chat = tokenized({{"user", "a", false}, {"assistant", "b", true}}, SIZE_MAX, /*learns_all=*/false);
  } catch (const Error&) {  // for a template that takes other chats alone
    return "";
  }
  auto end = chat.ids.size();
  while (end > 0 && (!chat.is_learned[end - 1] || is_white(chat.ids[end - 1]))) --end;
  if (end == 0 || !tokenizer_.is_added(chat.ids[end - 1])) return "";
  return tokenizer_.decode({{chat.ids[end - 1]}}, /*keep_special=*/true);
}

}  // namespace vernier
