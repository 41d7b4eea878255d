// `vernier tokenize`: makes a file of tokens of texts, and trains tokenizers.
#include <ATen/Parallel.h>
#include <vernier/cores.h>
#include <vernier/error.h>
#include <vernier/text/bpe_trainer.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/parts.h"
#include "common/output_file.h"
#include "common/text/quoting.h"
#include "common/verb.h"
#include "text/text_tokenizer.h"
#include "text/tokens/token_note.h"
#include "text_reader.h"

namespace {

namespace po = boost::program_options;
using namespace vernier;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier tokenize FILE… --tokenizer FOLDER --output FILE
       vernier tokenize FILE… --train --vocabulary NUMBER --tokenizer FOLDER [--output FILE]

Writes the tokens of texts to FILE: 2 bytes each, or 4 if the vocabulary has more than 65536 tokens, without a header.
FILE.json, beside it, says of which type they are and which tokenizer made them.
A file is one text; in a file that ends in .jsonl, each line has a text in its field "text". Files that end in .gz are
unpacked. A token that ends a text is written behind each.

  --tokenizer FOLDER   tokenizer.json, vocab.json and merges.txt, tokenizer.model, tekken.json, *.tiktoken or
                       vocab.txt; --train makes the folder
  --output FILE        the file to write, such as tokens.bin; one that is there is kept
  --force              replaces a file that is there
  --field NAME         every file is JSON Lines, and this field of a line has the text
  --end TOKEN          the token behind each text; "none": none; else the one that the folder names
  --special            also adds what the folder adds around a text, such as a token for its beginning
  --plain              special tokens that are written in a text stay ordinary text
  --invalid replace    bytes that are not UTF-8 become U+FFFD; else they are refused with file and byte
  --threads NUMBER     threads that work (all cores)

  --train              first trains byte-level BPE on the files, as GPT-2 has it
  --vocabulary NUMBER  tokens of the trained vocabulary (8000)
  --min-count NUMBER   a pair of tokens that occurs less often is not merged (0)
  --special-token TEXT a special token of the trained tokenizer; may be repeated; the first ends a text (<|endoftext|>)
)";

struct Settings {
  Words files, special;
  std::string tokenizer, output, end;
  TextFormat format;
  BpeTraining training;
  bool adds_special = false, is_plain = false, trains = false;
  std::size_t threads = 1;
};

Settings read_settings(const po::variables_map& given) {
  const auto text = [&](const char* name) { return word_or(given, name, ""); };
  Settings settings;
  settings.files = words_of(given);
  settings.tokenizer = text("tokenizer");
  settings.output = text("output");
  settings.end = text("end");
  settings.adds_special = given.count("special") != 0;
  settings.is_plain = given.count("plain") != 0;
  settings.trains = given.count("train") != 0;
  if (given.count("field") != 0) settings.format.field = text("field");
  const auto invalid = text("invalid");
  if (!invalid.empty() && invalid != "replace" && invalid != "refuse") {
    refuse("--invalid is replace or refuse, not '" + invalid + "'");
  }
  settings.format.replaces_invalid = invalid == "replace";
  settings.threads = static_cast<std::size_t>(number_in<std::int64_t>(given, "threads", 1, 1024));
  settings.training.vocabulary = given["vocabulary"].as<std::int64_t>();
  settings.training.min_count = given["min-count"].as<std::int64_t>();
  settings.training.special = {"<|endoftext|>"};
  for (const char* option : {"vocabulary", "min-count", "special-token"}) {
    if (settings.trains || given.count(option) == 0 || given[option].defaulted()) continue;
    refuse("--" + std::string(option) + " is for --train; add --train, or leave it out");
  }
  if (given.count("special-token") != 0) settings.training.special = given["special-token"].as<Words>();
  for (const auto& word : settings.training.special) {
    if (!word.empty() && std::ranges::count(settings.training.special, word) == 1) continue;
    refuse("--special-token " + shell_quoted(word) +
           (word.empty() ? " is empty; leave it out" : " is given twice; give it once"));
  }
  if (settings.files.empty()) refuse("name the files to read; see vernier tokenize --help");
  if (settings.tokenizer.empty()) refuse("name the tokenizer's folder with --tokenizer");
  if (settings.output.empty() && !settings.trains) refuse("name the file to write with --output");
  return settings;
}

// Calls work(part) for the parts of all files on several threads, and use(result) for the results in their order.
template <class Work, class Use>
void in_parallel(const Settings& settings, TextReader::Cut cut, const Work& work, const Use& use) {
  TextReader reader(settings.files, settings.format, std::move(cut));
  constexpr std::size_t parts_a_thread = 4;
  while (true) {
    std::vector<TextPart> parts;
    while (parts.size() < parts_a_thread * settings.threads) {
      auto part = reader.next();
      if (!part) break;
      parts.push_back(std::move(*part));
    }
    if (parts.empty()) return;
    using Result = decltype(work(parts[0]));
    std::vector<Result> results(parts.size());
    for_each_part(parts.size(), [&](std::size_t i) { results[i] = work(parts[i]); });
    for (auto& result : results) use(std::move(result));
  }
}

void train(const Settings& settings) {
  PieceCounts all;
  in_parallel(
      settings, last_piece_cut,
      [&](const TextPart& part) {
        PieceCounts counts;
        for_each_text(part, settings.format, [&](const std::string& text) { counts.add(text); });
        return counts;
      },
      [&](PieceCounts&& counts) { all.add(std::move(counts)); });
  if (all.counts().empty()) refuse("the files have no text to train on");
  const auto trained = train_bpe(all, settings.training);
  save_bpe(settings.tokenizer, trained, settings.training.special);
  std::cout << "trained " << settings.tokenizer << ": " << trained.tokens.size() << " tokens, " << trained.merges.size()
            << " merges, of " << all.counts().size() << " different words\n";
}

std::vector<TokenId> end_of(const Tokenizer& tokenizer, const Settings& settings) {
  if (settings.end == "none") return {};
  const auto id = settings.end.empty() ? tokenizer.end_of_text() : tokenizer.id(settings.end);
  if (id) return {*id};
  refuse(settings.end.empty()
             ? "'" + settings.tokenizer + "' names no token that ends a text; name one with --end, or none"
             : "'" + settings.tokenizer + "' has no token '" + settings.end + "'");
}

struct Encoded {
  std::vector<TokenId> ids;
  std::int64_t texts = 0;
  std::uint64_t bytes = 0;
};

Encoded encode(const TextTokenizer& tokenizer, const Settings& settings, const std::vector<TokenId>& end,
               const TextPart& part) {
  Encoded encoded;
  auto& ids = encoded.ids;
  const auto add = [&](const std::vector<TokenId>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  for_each_text(part, settings.format, [&](const std::string& text) {
    const bool is_begin = part.is_first || part.first_line > 0;
    if (is_begin && settings.adds_special) add(tokenizer.before_text());
    tokenizer.encode_part(text, is_begin ? Place::beginning : Place::continued, settings.is_plain, ids);
    encoded.bytes += text.size();
    if (!part.is_last && part.first_line == 0) return;
    if (settings.adds_special) add(tokenizer.after_text());
    add(end);
    ++encoded.texts;
  });
  return encoded;
}

// A file of tokens as token_dataset() reads it: no header, little-endian, 2 bytes a token where the vocabulary allows
// it, else 4. Writes to a file beside it until finish(), which writes the note, too.
class TokenFile {
 public:
  TokenFile(const std::string& path, std::int64_t vocabulary)
      : path_(path), whole_(path), is_short_(vocabulary <= 65536), file_(whole_.part(), std::ios::binary) {
    require_written("");
  }
  void write(const std::vector<TokenId>& ids) {
    const std::size_t width = is_short_ ? 2 : 4;
    bytes_.clear();
    for (const auto id : ids) {
      for (std::size_t i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(id >> 8 * i & 0xFF));
    }
    file_.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    require_written("; is the disk full?");
    count_ += static_cast<std::int64_t>(ids.size());
  }
  void finish(const Tokenizer& tokenizer) {
    file_.flush();
    require_written("; is the disk full?");
    file_.close();
    const auto path = note_path(path_);
    WholeFile note(path);
    std::ofstream text(note.part(), std::ios::binary);
    text << text_of(TokenNote{type(), count_, tokenizer.vocabulary(), tokenizer.checksum()});
    if (!text.flush()) throw Error("'" + path + "' cannot be written; is the disk full?");
    text.close();
    std::error_code none;
    std::filesystem::remove(path, none);  // a note must not stand beside tokens that it is not of
    whole_.finish();
    note.finish();
  }
  std::int64_t count() const { return count_; }
  const char* type() const { return is_short_ ? "uint16" : "uint32"; }

 private:
  void require_written(const std::string& question) const {
    if (!file_) throw Error("'" + path_ + "' cannot be written" + question);
  }

  std::string path_;
  WholeFile whole_;
  bool is_short_;
  std::ofstream file_;
  std::vector<char> bytes_;
  std::int64_t count_ = 0;
};

void tokenize(const Settings& settings) {
  const auto tokenizer = open_text_tokenizer(settings.tokenizer);
  const auto end = end_of(*tokenizer, settings);
  TokenFile file(settings.output, tokenizer->vocabulary());
  std::int64_t texts = 0;
  std::uint64_t bytes = 0;
  in_parallel(
      settings, [&](std::string_view text) { return tokenizer->last_cut(text); },
      [&](const TextPart& part) { return encode(*tokenizer, settings, end, part); },
      [&](const Encoded& encoded) {
        file.write(encoded.ids);
        texts += encoded.texts;
        bytes += encoded.bytes;
      });
  if (file.count() == 0) refuse("the files have no text");
  file.finish(*tokenizer);
  std::cout << "wrote " << settings.output << ": " << file.count() << " tokens, " << file.type() << ", of " << texts
            << " texts with " << bytes << " bytes; the vocabulary has " << tokenizer->vocabulary() << "\n";
}

int run(const po::variables_map& given) {
  const auto settings = read_settings(given);
  if (!settings.output.empty()) {
    for (const auto& file : {settings.output, note_path(settings.output)}) refuse_output(given, file);
  }
  at::set_num_threads(static_cast<int>(settings.threads));
  if (settings.trains) train(settings);
  if (!settings.output.empty()) tokenize(settings);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cores = vernier::available_cores();
  po::options_description known;
  known.add_options()("tokenizer", po::value<std::string>())("output", po::value<std::string>())(
      "field", po::value<std::string>())("end", po::value<std::string>())("special", "")("plain", "")(
      "invalid", po::value<std::string>())("threads", po::value<std::int64_t>()->default_value(cores))("train", "")(
      "vocabulary", po::value<std::int64_t>()->default_value(8000))(
      "min-count", po::value<std::int64_t>()->default_value(0))("special-token", po::value<Words>())("force", "");
  return call_verb({"tokenize", usage, known, run}, argc, argv);
}
