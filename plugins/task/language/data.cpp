#include "data.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>
#include <vernier/text/token_data.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>
#include <filesystem>

#include "model_files.h"

namespace language {

namespace {

using vernier::between;
using vernier::DatasetPtr;

constexpr std::int64_t not_learned = -100;  // the ignored target of cross_entropy_loss()

// A table of words, such as [task.roles].
std::map<std::string, std::string> words_of(vernier::Options& options, const char* key, const char* meaning) {
  std::map<std::string, std::string> words;
  for (const auto& [word, value] : options.get(key, vernier::Table{}, meaning)) {
    const auto* text = std::get_if<std::string>(&value.data);
    if (text == nullptr || text->empty()) options.refuse(key, "must have a text for '" + word + "'");
    words[word] = *text;
  }
  return words;
}

std::vector<std::string> contents_of(const std::vector<std::string>& files) {
  std::vector<std::string> all;
  for (const auto& file : files) all.push_back(vernier::file_fingerprint(file));
  return all;
}

DatasetPtr together(const std::vector<DatasetPtr>& sets) {
  return sets.size() == 1 ? sets.front() : vernier::concat(sets);
}

// Windows of a file that begin so many tokens apart; the last ends with the file. A token that a window before has
// predicted is not learned again, so each is predicted once, but for the first of the file.
class Overlapping final : public vernier::Dataset {
 public:
  // all: the windows from every token on.
  Overlapping(DatasetPtr all, std::int64_t length, std::int64_t stride)
      : all_(std::move(all)), length_(length), stride_(stride) {}
  std::int64_t size() const override { return (all_->size() - 1 + stride_ - 1) / stride_ + 1; }
  vernier::Sample get(std::int64_t index, vernier::Random& random) const override {
    auto sample = all_->get(begin(index), random);
    const auto seen = index == 0 ? 0 : begin(index - 1) + length_ - begin(index);
    if (seen > 0) sample[1].narrow(0, 0, seen).fill_(not_learned);
    return sample;
  }
  std::string where(std::int64_t index) const override { return all_->where(begin(index)); }
  std::string fingerprint() const override { return c10::str(all_->fingerprint(), ", ", stride_, " apart"); }

 private:
  std::int64_t begin(std::int64_t index) const { return std::min(index * stride_, all_->size() - 1); }
  DatasetPtr all_;
  std::int64_t length_, stride_;
};

}  // namespace

Data::Data(vernier::Options& options, bool pairs)
    : is_given_(options.given("data")),
      are_pairs_(pairs),
      files_(options.get("data", std::vector<std::string>{},
                         "needed: files of tokens, .bin or .npy, or of texts: .txt, .jsonl and .json; []: the model is "
                         "only used, not trained")),
      held_out_(options.get("validation", std::vector<std::string>{}, "held-out files of the same kind")),
      token_type_(options.choose("token_type", "auto",
                                 {"auto", "uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"},
                                 "of files of tokens; auto: what the file says, else uint16 if the vocabulary fits "
                                 "into it, else uint32")),
      tokenizer_(options.get("tokenizer", "", "folder of the tokenizer for texts; empty: the model's folder")),
      context_(options.get("context", 256, "tokens that a window predicts", between(1, 1e7))),
      stride_(options.get("stride", 0, "tokens between the beginnings of two windows of a file of tokens; 0: context",
                          between(0, 1e7))),
      validation_stride_(options.get("validation_stride", 0,
                                     "the same in `validation`, where each token is predicted once, with at least "
                                     "context - validation_stride before it; 0: context",
                                     between(0, 1e7))),
      share_(options.get("validation_share", 0.1, "share of windows held out without validation; 0: none",
                         between(0, 0.9))),
      shares_(options.get("shares", std::vector<double>{},
                          "how often each file of data is drawn from, relative to the "
                          "others, whatever its size; []: each sample once in an epoch",
                          between(0, 1e9))) {
  for (const char* key : {"data", "validation", "tokenizer"}) options.resumable(key);  // content counts, not path
  texts_.length = context_;
  texts_.packs = options.get("packing", true, "texts: several in one row, none of which sees another");
  texts_.learns_all = options.choose("learn", "answers", {"answers", "all"},
                                     "texts: of prompts and chats only the answers, or all") == "all";
  chat_ = options.choose("chat", "auto", {"auto", "chatml", "llama3"},
                         "texts: how messages of a chat are written; auto: by the chat template of the tokenizer's "
                         "folder, or else as ChatML");
  texts_.chat = chat_ == "llama3" ? vernier::ChatStyle::llama3 : vernier::ChatStyle::chatml;
  texts_.instructions_as_chat =
      options.choose("instructions", "alpaca", {"alpaca", "chat"},
                     "texts: what instruction, input and output become: Alpaca's prompt, or a chat") == "chat";
  texts_.fields = words_of(options, "fields", "texts: the files' names of fields, such as {text = \"body\"}");
  texts_.roles = words_of(options, "roles", "texts: what the files' roles are, such as {bot = \"assistant\"}");
  are_texts_ = !files_.empty() && vernier::has_texts(files_.front());
  refuse_mistakes(options);
  if (!shares_.empty() && options.given("order")) {
    idle_ = "`order` has no effect with `shares`, which draw the samples; leave one of them out";
  } else if (stride_ > 0 && stride_ < context_ && held_out_.empty() && share_ > 0 && !files_.empty()) {
    idle_ = c10::str("`stride` is below context = ", context_,
                     ", so held-out windows would overlap the others; "
                     "name files in `validation`, or set validation_share = 0");
  }
}

void Data::refuse_mistakes(const vernier::Options& options) const {
  for (const auto* list : {&files_, &held_out_}) {
    for (const auto& file : *list) {
      if (vernier::has_texts(file) == are_texts_) continue;
      options.refuse(list == &files_ ? "data" : "validation",
                     "'" + file + "' is a file of " + (are_texts_ ? "tokens" : "texts") + ", and '" + files_.front() +
                         "' one of " + (are_texts_ ? "texts" : "tokens") +
                         "; make tokens of all with vernier tokenize");
    }
  }
  const auto only_for = [&](bool texts, std::initializer_list<const char*> keys) {
    if (files_.empty() || are_texts_ == texts) return;
    for (const auto* key : keys) {
      if (options.given(key))
        options.refuse(key, texts ? "is for texts: .txt, .jsonl and .json" : "is for files of tokens");
    }
  };
  only_for(true, {"packing", "learn", "chat", "instructions", "fields", "roles"});
  only_for(false, {"stride", "validation_stride", "token_type"});
  if (are_pairs_ && !files_.empty() && !are_texts_) {
    options.refuse("data",
                   "'" + files_.front() + "' is a file of tokens, and pairs of answers are read from .jsonl and .json");
  }
  for (const auto* key : {"packing", "learn", "instructions"}) {
    if (are_pairs_ && options.given(key)) options.refuse(key, "is for objective = \"likelihood\"");
  }
  if (validation_stride_ > 0 && held_out_.empty()) options.refuse("validation_stride", "needs files in `validation`");
  if (validation_stride_ > context_) {
    options.refuse("validation_stride", c10::str("is above context = ", context_, ", so tokens would be left out"));
  }
  if (!shares_.empty() && shares_.size() != files_.size()) {
    options.refuse("shares", c10::str("has ", shares_.size(), " numbers, and `data` ", files_.size(), " files"));
  }
  if (!shares_.empty() && std::ranges::count(shares_, 0.0) == std::ssize(shares_)) {
    options.refuse("shares", "has no number above 0");
  }
}

// Hugging Face's files of a tokenizer, if the folder has them.
std::string Data::tokenizer_folder(const std::string& model) const {
  if (!tokenizer_.empty()) return tokenizer_;
  return vernier::has_tokenizer(model) ? model : "";
}

// The checksum of the model's tokenizer, which a note beside a file of tokens names; "" without such a note.
std::string Data::checksum_of_tokenizer(const std::string& model) const {
  const auto has_note = [](const std::string& file) { return std::filesystem::exists(file + ".json"); };
  if (are_texts_ || (std::ranges::none_of(files_, has_note) && std::ranges::none_of(held_out_, has_note))) return "";
  const auto folder = tokenizer_folder(model);
  return folder.empty() ? "" : vernier::open_tokenizer(folder)->checksum();
}

DatasetPtr Data::tokens_of(const std::string& file, Model& model, std::int64_t stride) const {
  vernier::WindowOptions options;
  options.length = context_;
  options.stride = stride;
  options.vocabulary = model.vocabulary;
  if (token_type_ != "auto") options.type = token_type_;
  options.tokenizer = model.checksum;
  const auto data = vernier::read_tokens(file, options);
  model.note(c10::str(file, ": ", data.tokens, " tokens of ", data.type, data.known_by.empty() ? "" : ", ",
                      data.known_by, ", the largest ", data.largest,
                      data.tokens > vernier::tokens_looked_at ? " of those looked at" : ""));
  return data.dataset;
}

std::vector<DatasetPtr> Data::texts_of(const std::vector<std::string>& files, Model& model) const {
  const auto folder = tokenizer_folder(model.folder);
  if (folder.empty()) {
    vernier::refuse("'" + files.front() + "' has texts, and " + model.folder +
                    " has no tokenizer; name the folder of one with `tokenizer`");
  }
  const auto tokenizer = vernier::open_tokenizer(folder);
  if (tokenizer->vocabulary() > model.vocabulary) {
    vernier::refuse(c10::str("the tokenizer of ", folder, " has ", tokenizer->vocabulary(),
                             " tokens, and the model of ", model.folder, " ", model.vocabulary,
                             "; give the model's own tokenizer, or name those that are new in new_tokens"));
  }
  const auto texts = texts_for(folder);
  std::vector<DatasetPtr> all;
  for (const auto& file : files) {
    const bool had_chats = std::exchange(model.has_chats, false);
    all.push_back(text_of(file, *tokenizer, texts, model));
    if (model.has_chats && chat_ != "auto") require_chat_style(folder, own_template());
    model.has_chats = model.has_chats || had_chats;
  }
  if (model.has_chats) {
    const auto end = vernier::end_of_answer(*tokenizer, texts);
    model.note(end.empty() ? "no token ends an answer, so generation will not stop there" : "answers end with " + end);
  }
  return all;
}

vernier::LanguageDataOptions Data::texts_for(const std::string& folder) const {
  auto texts = texts_;
  if (chat_ == "auto" && !vernier::chat_template_of(folder).empty()) texts.template_folder = folder;
  return texts;
}

DatasetPtr Data::text_of(const std::string& file, const vernier::Tokenizer& tokenizer,
                         const vernier::LanguageDataOptions& texts, Model& model) const {
  const auto style = [&](std::int64_t chats) {
    if (chats == 0) return "";
    const bool is_chatml = texts.chat == vernier::ChatStyle::chatml;
    return !texts.template_folder.empty() ? " by the folder's template" : is_chatml ? " as ChatML" : " as Llama 3";
  };
  if (are_pairs_) {
    const auto data = vernier::read_preference_data(tokenizer, file, texts);
    model.has_chats |= data.chats > 0;
    model.note(c10::str(file, ": ", data.dataset->size(), " pairs of answers, ", data.left_out, " left out; ",
                        data.chats, " of chats", style(data.chats)));
    return data.dataset;
  }
  const auto data = vernier::read_language_data(tokenizer, file, texts);
  model.has_chats |= data.chats > 0;
  model.note(c10::str(file, ": ", data.texts, " texts in ", data.dataset->size(), " rows, ", data.tokens, " tokens, ",
                      data.learned, " learned, ", data.left_out, " texts left out; ", data.chats, " chats",
                      style(data.chats), ", ", data.prompts, " prompts"));
  if (data.cut > 0) {
    model.note(
        c10::str(data.cut, " are longer than context = ", context_, ", and lose what they would learn behind it"));
  }
  return data.dataset;
}

std::vector<DatasetPtr> Data::read(const std::vector<std::string>& files, Model& model) const {
  if (are_texts_) return texts_of(files, model);
  std::vector<DatasetPtr> all;
  for (const auto& file : files) all.push_back(tokens_of(file, model, stride_));
  return all;
}

// Each token of a file of tokens is predicted once, those behind its last whole window too.
DatasetPtr Data::held_out_of(const std::vector<std::string>& files, Model& model) const {
  if (are_texts_) return together(read(files, model));
  const auto stride = validation_stride_ > 0 ? validation_stride_ : context_;
  std::vector<DatasetPtr> all;
  for (const auto& file : files) {
    all.push_back(std::make_shared<Overlapping>(tokens_of(file, model, 1), context_, stride));
  }
  return together(all);
}

Data::Sets Data::load(std::int64_t vocabulary, const std::string& folder, std::uint64_t seed,
                      const vernier::State& trained) const {
  Model model{vocabulary, folder, checksum_of_tokenizer(folder), {}, false};
  Sets sets;
  const vernier::NamedData named = {{files_, ""}, {held_out_, ""}, "validation", "", true};
  if (trained.has("named/contents")) {
    std::vector<std::string> files;
    const auto take = [&](const vernier::NamedData::Files& chosen) { return contents_of(files = chosen.names); };
    named.read_again(trained, take, [&] {
      read_both(model, seed, sets);
      return sets.held_out;
    });
    if (!sets.training) sets.training = sets.held_out = held_out_of(files, model);
  } else {
    if (!idle_.empty()) vernier::refuse(idle_);
    read_both(model, seed, sets);
    sets.facts = named.facts(contents_of(files_), sets.held_out);
  }
  sets.summary = model.summary;
  sets.has_chats = model.has_chats;
  if (sets.training->size() == 0) {
    vernier::refuse("data: no window is left to train on; give more data, a smaller context, or hold out less");
  }
  return sets;
}

void Data::read_both(Model& model, std::uint64_t seed, Sets& sets) const {
  auto training = read(files_, model);
  if (!held_out_.empty()) {
    sets.held_out = held_out_of(held_out_, model);
  } else if (share_ > 0) {
    // With shares, of each file.
    if (shares_.empty()) training = {together(training)};
    std::vector<DatasetPtr> held_out;
    for (auto& set : training) {
      held_out.emplace_back();
      std::tie(set, held_out.back()) = vernier::split(set, share_, seed);
    }
    sets.held_out = together(held_out);
  }
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] == 0 || training[i]->size() > 0) continue;
    vernier::refuse(c10::str("shares: '", files_[i], "' has the share ", shares_[i],
                             ", and all of it is held out; name files in `validation`, or set validation_share = 0"));
  }
  if (!shares_.empty()) sets.weights = vernier::mixture_weights(training, shares_);
  sets.training = together(training);
}

void TokenLoss::update(const torch::Tensor& output, const torch::Tensor& targets) {
  if (!sum_.defined()) sum_ = count_ = torch::zeros({}, output.options().dtype(torch::kFloat64));
  const auto flat = targets.flatten(), count = (flat != not_learned).sum();
  count_ = count_ + count;
  if (output.dim() == 0) {
    sum_ = sum_ + at::where(count > 0, output.to(torch::kFloat64) * count, torch::zeros_like(sum_));
    return;
  }
  const auto losses =
      at::cross_entropy_loss(output.flatten(0, 1).to(torch::kFloat32), flat, {}, at::Reduction::None, not_learned);
  sum_ = sum_ + losses.sum(torch::kFloat64);
}

std::optional<vernier::State> TokenLoss::state_dict() const {
  return sum_.defined() ? vernier::State{{"sum", sum_}, {"count", count_}} : vernier::State{};
}

void TokenLoss::add(const vernier::State& state) {
  if (!state.has("sum")) return;
  const auto sum = state.tensor("sum"), count = state.tensor("count");
  sum_ = sum_.defined() ? sum_ + sum.to(sum_.device()) : sum;
  count_ = count_.defined() ? count_ + count.to(count_.device()) : count;
}

std::string Data::end_of_answer(const std::string& folder) const {
  return vernier::end_of_answer(*vernier::open_tokenizer(folder), texts_for(folder));
}

std::string Data::chat_template(const std::string& folder) const {
  return texts_for(folder).template_folder.empty() ? own_template() : "";
}

std::string Data::own_template() const {
  if (texts_.chat == vernier::ChatStyle::chatml) {
    return "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  }
  return "{{ '<|begin_of_text|>' }}{% for m in messages %}"
         "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor "
         "%}"
         "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
}

}  // namespace language
