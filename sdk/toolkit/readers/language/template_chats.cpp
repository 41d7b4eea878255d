#include "template_chats.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

// Stand for texts of messages, to see where a template puts them: characters of private use, which no text has.
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

template <class Sequence>
std::size_t common(const Sequence& a, const Sequence& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
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

TemplateChats::Range TemplateChats::tokens_of(const Range& bytes, const std::string& whole,
                                              const std::vector<TokenId>& ids) const {
  const auto before = tokenizer_.encode(whole.substr(0, bytes.first), false);
  const auto with = tokenizer_.encode(whole.substr(0, bytes.second), false);
  const auto first = common(ids, before), last = common(ids, with);
  return {first, std::max(first, std::min(last + (last < with.size() ? 1 : 0), ids.size()))};
}

TemplateChats::Range TemplateChats::answer_in(const std::string& whole, const OrderedJson& messages, std::size_t number,
                                              const std::vector<TokenId>& ids) const {
  auto answer = tokens_of(bytes_of(whole, messages, number), whole, ids);
  auto end = answer.second;
  while (end < ids.size() && is_white(ids[end])) ++end;
  if (end < ids.size() && tokenizer_.is_added(ids[end])) answer.second = end + 1;
  return answer;
}

TokenizedText TemplateChats::tokenized(const std::vector<ChatMessage>& messages) const {
  const auto json = json_of(messages);
  const auto [whole, marked] = template_.render_for_training(json, false);
  TokenizedText chat{.ids = tokenizer_.encode(whole, false), .form = LanguageLine::Form::messages};
  chat.is_learned.resize(chat.ids.size(), false);
  const auto learn = [&chat](const Range& tokens) {
    const auto begin = chat.is_learned.begin();
    std::fill(begin + static_cast<std::ptrdiff_t>(tokens.first), begin + static_cast<std::ptrdiff_t>(tokens.second),
              true);
  };
  const auto answers = static_cast<std::size_t>(std::ranges::count(messages, "assistant", &ChatMessage::role));
  const auto learned = static_cast<std::size_t>(std::ranges::count(messages, true, &ChatMessage::is_learned));
  if (!marked.empty() && learned == answers) {  // an answer may have several marks
    for (const auto& bytes : marked) learn(tokens_of(bytes, whole, chat.ids));
    return chat;
  }
  auto mark = marked.begin();
  for (std::size_t i = 0; i < messages.size(); ++i) {
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
    chat = tokenized({{"user", "a", false}, {"assistant", "b", true}});
  } catch (const Error&) {  // for a template that takes other chats alone
    return "";
  }
  const auto last = std::ranges::find(chat.is_learned.rbegin(), chat.is_learned.rend(), true);
  if (last == chat.is_learned.rend()) return "";
  const auto id = chat.ids[static_cast<std::size_t>(chat.is_learned.rend() - last) - 1];
  return tokenizer_.is_added(id) ? tokenizer_.decode({{id}}, /*keep_special=*/true) : "";
}

}  // namespace vernier
