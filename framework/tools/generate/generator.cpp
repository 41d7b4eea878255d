#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <vernier/error.h>

#include <algorithm>
#include <memory>

#include "text/chat_template.h"
#include "text_stream.h"

namespace vernier {

namespace {

std::string before(const std::string& where) {
  return where.empty() ? "" : where + ": ";
}

// Puts the place of a prompt before an error.
template <class Call>
auto at_place(const std::string& where, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    throw Error(before(where) + error.what(), error.kind());
  }
}

[[noreturn]] void fail_not_finite(const std::string& where, std::int64_t tokens) {
  throw Error(before(where) +
                  c10::str("the model gives no finite probabilities after ", tokens, " tokens; has the run diverged?"),
              Error::Kind::training);
}

}  // namespace

// The texts behind one prompt.
struct Generator::Texts {
  PromptJob job;
  std::vector<Completion> completions;
  std::vector<std::unique_ptr<TextStream>> streams;
  std::vector<std::size_t> printed;  // tokens of each text
  std::size_t left = 0;

  // Prints a piece, with the tokens that came since the last one. Where a text is "" there must be some.
  void print(std::size_t i, const std::string& text) {
    auto& [whole, count, end, all, offsets, score] = completions[i];
    while (offsets.size() < all.size()) offsets.push_back(streams[i]->offset(offsets.size()));
    const auto from = std::exchange(printed[i], all.size());
    if (!job.print || (text.empty() && from == all.size())) return;
    job.print(i, text, std::span(all).subspan(from), std::span(offsets).subspan(from));
  }
};

Generator::Generator(LanguageModel& model, torch::Device device, const std::string& tokenizer,
                     const std::atomic<int>& stop_signal)
    : model_(model), device_(device), codec_(model, tokenizer), stop_signal_(stop_signal) {
  if (const auto end = codec_.end_of_text()) ends_.push_back(*end);
  for (const auto& word : model.end_words()) {
    if (const auto end = codec_.id(word)) ends_.push_back(*end);
  }
  const auto folder = tokenizer.empty() ? model.tokenizer_folder() : tokenizer;
  if (const auto own = model.chat_template(); !own.empty()) {
    chats_ = std::make_unique<const ChatTemplate>(own, "the style of the model's chats");
  } else if (codec_.has_tokenizer()) {
    if (auto of_folder = ChatTemplate::of_folder(folder)) {
      chats_ = std::make_unique<const ChatTemplate>(std::move(*of_folder));
    }
  }
}

Generator::~Generator() = default;

std::string Generator::text_of_chat(const OrderedJson& messages, const std::string& where) const {
  require_messages(messages, where);
  if (!chats_) {
    refuse(before(where) +
           "the model's folder has no template for chats (chat_template.jinja, or chat_template in "
           "tokenizer_config.json); give a prompt, written as the model was trained");
  }
  return at_place(where, [&] { return chats_->render(messages, /*add_generation_prompt=*/true); });
}

std::vector<TokenId> Generator::tokens_of(const OrderedJson& object, const std::string& where) const {
  const bool is_chat = object.contains("messages");
  const auto text = is_chat ? text_of_chat(object["messages"], where) : object["prompt"].get<std::string>();
  return at_place(where, [&] { return codec_.encode(text, /*special=*/!is_chat); });
}

GenerationOptions Generator::options_of(const GenerationSettings& settings) const {
  auto options = settings.options;
  options.ends.insert(options.ends.end(), ends_.begin(), ends_.end());
  for (const auto& stop : settings.stops) {
    if (const auto token = codec_.special(stop)) options.ends.push_back(*token);
  }
  std::ranges::sort(options.ends);
  options.ends.erase(std::ranges::unique(options.ends).begin(), options.ends.end());
  return options;
}

void Generator::require_no_signal() const {
  if (stop_signal_ != 0) throw Error("stopped", Error::Kind::training);
}

void Generator::run(const GenerationSettings& settings, const std::function<std::optional<PromptJob>()>& next) const {
  Generation texts(model_, options_of(settings), device_);
  const auto fits = [&] {
    return texts.size() == 0 || static_cast<std::int64_t>(texts.size()) + settings.count <= settings.batch;
  };
  bool are_more = true;
  while (true) {
    while (are_more && fits()) {
      auto job = next();
      are_more = job.has_value();
      if (!job) break;
      settings.beams.beams > 1 ? search(settings, *job) : begin(settings, std::move(*job), texts);
    }
    if (texts.size() == 0 && !are_more) return;
    texts.step();
    require_no_signal();
  }
}

void Generator::begin(const GenerationSettings& settings, PromptJob job, Generation& texts) const {
  const auto all = std::make_shared<Texts>();
  all->job = std::move(job);
  all->left = static_cast<std::size_t>(settings.count);
  all->completions.resize(all->left);
  all->printed.resize(all->left);
  std::vector<Generation::Text> takers;
  for (std::size_t i = 0; i < all->completions.size(); ++i) {
    all->streams.push_back(std::make_unique<TextStream>(
        codec_, all->job.prompt, settings.stops, [all = all.get(), i](const auto& text) { all->print(i, text); }));
    const auto take = [this, all, i, keeps = settings.options.likeliest >= 0](const GeneratedToken& token) {
      if (keeps) all->completions[i].log_probabilities.push_back(token);
      if (!all->streams[i]->add(token.id)) return false;
      return stop_signal_ == 0 && (!all->job.is_wanted || all->job.is_wanted());
    };
    const auto end = [this, all, i](GenerationEnd reason) {
      require_no_signal();
      auto& stream = *all->streams[i];
      if (reason == GenerationEnd::not_finite) fail_not_finite(all->job.where, stream.tokens());
      stream.finish();
      all->print(i, "");  // tokens behind the last piece, such as the beginning of a stop word
      auto& completion = all->completions[i];
      completion.text = stream.text();
      completion.tokens = stream.tokens();
      completion.end = reason;
      if (--all->left == 0) all->job.done(std::move(all->completions));
    };
    takers.push_back({take, end});
  }
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(settings.seed + all->job.more_seed);
  const auto goes_on = [&] { return stop_signal_ == 0 && (!all->job.is_wanted || all->job.is_wanted()); };
  at_place(all->job.where, [&] { texts.add(all->job.prompt, generator, std::move(takers), goes_on); });
  require_no_signal();
}

void Generator::search(const GenerationSettings& settings, const PromptJob& job) const {
  const auto text_of = [&](std::span<const TokenId> tokens, bool& stops) {
    TextStream stream(codec_, job.prompt, settings.stops, [](const auto&) {});
    stops = !stream.add_all(tokens);
    return stream.text();
  };
  auto beams = settings.beams;
  bool stops = false;
  if (!settings.stops.empty()) {
    beams.stops = [&](std::span<const TokenId> tokens) { return text_of(tokens, stops), stops; };
  }
  beams.goes_on = [this] { return stop_signal_ == 0; };
  const auto found =
      at_place(job.where, [&] { return search_beams(model_, job.prompt, options_of(settings), beams, device_); });
  require_no_signal();
  std::vector<Completion> completions;
  for (const auto& [tokens, score, end] : found) {
    if (end == GenerationEnd::not_finite) fail_not_finite(job.where, std::ssize(tokens));
    if (std::ssize(completions) == settings.count) break;
    completions.push_back({text_of(tokens, stops), std::ssize(tokens), end, {}, {}, score});
  }
  if (job.print && !completions.empty()) job.print(0, completions[0].text, {}, {});
  job.done(std::move(completions));
}

}  // namespace vernier
