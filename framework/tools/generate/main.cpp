// `vernier generate`: continues texts with the model of a run, or with a published one.
#include <ATen/CPUGeneratorImpl.h>
#include <unistd.h>
#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "batch.h"
#include "codec.h"
#include "model_settings.h"
#include "output/log.h"
#include "text_stream.h"
#include "tools/common/model/trained_run.h"
#include "tools/common/text/quoting.h"
#include "tools/common/verb.h"
#include "wiring/config.h"
#include "wiring/plugin_folders.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using vernier::GenerationEnd;
using vernier::TokenId;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier generate RUN --prompt TEXT
       vernier generate RUN --input FILE.jsonl --output FILE.jsonl

Continues texts with the language model of a run, of one of its checkpoints, or of a published folder with config.json.
Prints what follows the prompt, token by token.

  --prompt TEXT        the text to continue; "-": standard input
  --input FILE         JSON Lines instead: each line has a text in "prompt"
  --output FILE        the lines again, with "completion", "tokens" and "end"; without it, on standard output
  --tokenizer FOLDER   the tokenizer; else that of the published folder; without one, bytes if the model reads bytes,
                       or else the numbers of tokens
  --max-tokens NUMBER  tokens of a completion at most (100)
  --stop TEXT          ends a completion before this text; may be repeated
  --seed NUMBER        of the draws (1); line n of a file has this seed + n

how the next token is drawn, in this order; defaults are those of the model's generation_config.json, or else these
  --repetition-penalty NUMBER  makes tokens that the text has less likely; 1: does not (1)
  --temperature NUMBER         divides the logits; 0: always the likeliest token (1)
  --top-k NUMBER               among the k likeliest; 0: all (0)
  --top-p NUMBER               among the fewest whose probabilities sum up to it (1)
  --min-p NUMBER               among those with at least this share of the largest probability (0)

  --no-cache           computes the whole text for each token; the tokens are the same, and it takes longer
  --slide              beyond the positions of the model each token follows from the last ones, without the cache; else
                       the text ends there
  --set KEY=VALUE      changes the run's configuration, as in --set precision.use=bf16
  --plugin-path FOLDER looks for plugins there first
)";

std::atomic<int> stop_signal = 0;

// A file of completions is not left half written. A second signal ends the process.
extern "C" void remember_stop(int signal) {
  stop_signal = signal;
  std::signal(signal, SIG_DFL);
}

struct Settings {
  vernier::GenerationOptions options;
  Words stops;
  std::uint64_t seed = 1;
};

Settings read_settings(const po::variables_map& given) {
  constexpr std::int64_t many = 1'000'000'000;
  constexpr double least_share = 1e-9;
  Settings settings;
  auto& sampling = settings.options.sampling;
  sampling.temperature = vernier::number_in(given, "temperature", 0.0, 1000.0);
  sampling.top_k = vernier::number_in<std::int64_t>(given, "top-k", 0, many);
  sampling.top_p = vernier::number_in(given, "top-p", least_share, 1.0);
  sampling.min_p = vernier::number_in(given, "min-p", 0.0, 1.0);
  sampling.repetition_penalty = vernier::number_in(given, "repetition-penalty", least_share, 1000.0);
  settings.options.max_tokens = vernier::number_in<std::int64_t>(given, "max-tokens", 1, many);
  settings.options.uses_cache = given.count("no-cache") == 0;
  settings.options.slides = given.count("slide") != 0;
  settings.stops = vernier::words_in(given, "stop");
  settings.seed = static_cast<std::uint64_t>(vernier::number_in<std::int64_t>(given, "seed", 0, INT64_MAX));
  if (std::ranges::count(settings.stops, "") != 0) vernier::refuse("--stop needs a text, and this one is empty");
  return settings;
}

// The task for a published folder, by its config.json.
std::string family_of_folder(const std::string& folder) {
  const auto path = (fs::path(folder) / "config.json").string();
  constexpr std::uint64_t longest = 16'000'000;  // bytes
  constexpr std::size_t deepest = 16;
  const auto parsed = [&] {
    try {
      return vernier::parse_json("'" + path + "'", "configuration", vernier::read_data_file(path, longest), deepest);
    } catch (const vernier::Error& error) {
      vernier::refuse(vernier::message(error));
    }
  }();
  const auto& json = parsed.value;
  const auto type = json.is_object() && json.contains("model_type") && json["model_type"].is_string()
                        ? json["model_type"].get<std::string>()
                        : "";
  if (type == "gpt2") return "gpt";
  if (type == "llama") return "llama";
  vernier::refuse(path + ": model_type is \"" + type + "\", and generate knows gpt2 and llama");
}

// A published folder as a run that is not trained.
std::unique_ptr<vernier::Prepared> load_folder(const std::string& path, Words sets, const vernier::Host& host) {
  const auto family = family_of_folder(path);
  const auto text = "[run]\nsteps = 1\n[task]\nuse = '" + family + "'\ndata = []\n[optimizer]\nuse = 'adamw'\n";
  sets.insert(sets.begin(), "task.folder=" + vernier::toml_quoted(path));
  vernier::set_log_level(static_cast<int>(vernier::Level::warning));
  auto config = vernier::load_config({}, sets, text);
  return vernier::prepare(
      std::move(config), "generate", host, stop_signal, [](auto&&...) { return true; }, 0, {}, vernier::Purpose::use);
}

std::unique_ptr<vernier::Prepared> load(const po::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.size() != 1) vernier::refuse("name one run, as in `vernier generate runs/NAME --prompt \"Once\"`");
  const auto& path = words.front();
  const vernier::Host host(vernier::plugin_folders(vernier::words_in(given, "plugin-path"), "--plugin-path ", {}));
  const auto sets = vernier::words_in(given, "set");
  if (fs::exists(fs::path(path) / "config.json") && !fs::exists(fs::path(path) / "config.toml")) {
    return load_folder(path, sets, host);
  }
  const bool changes_data = std::ranges::any_of(sets, [](const auto& set) { return set.starts_with("task."); });
  return vernier::load_run(path, sets, host, stop_signal,
                           changes_data ? vernier::Use::other_data : vernier::Use::model);
}

vernier::LanguageModel& model_of(const vernier::Prepared& prepared) {
  auto* model = dynamic_cast<vernier::LanguageModel*>(prepared.wiring->task.get());
  if (model != nullptr) return *model;
  vernier::refuse("generate is for tasks with a language model, and " + prepared.wiring->task->id() +
                  " has none; see docs/finetune.md");
}

// Puts what the model's folder says in the place of defaults, and says so.
void apply(const vernier::ModelSettings& model, const po::variables_map& given, Settings& settings) {
  std::string taken;
  const auto take = [&](const char* option, const auto& value, auto& into) {
    if (!value || !given[option].defaulted() || *value == into) return;
    into = *value;
    taken += c10::str(taken.empty() ? "" : ", ", option, " ", *value);
  };
  auto& sampling = settings.options.sampling;
  take("temperature", model.temperature, sampling.temperature);
  take("top-k", model.top_k, sampling.top_k);
  take("top-p", model.top_p, sampling.top_p);
  take("min-p", model.min_p, sampling.min_p);
  take("repetition-penalty", model.repetition_penalty, sampling.repetition_penalty);
  take("max-tokens", model.max_tokens, settings.options.max_tokens);
  auto& ends = settings.options.ends;
  ends.insert(ends.end(), model.ends.begin(), model.ends.end());
  settings.stops.insert(settings.stops.end(), model.stops.begin(), model.stops.end());
  if (!taken.empty()) std::cerr << "vernier: by the model's generation_config.json: " << taken << '\n';
  if (model.ignored.empty()) return;
  std::cerr << "vernier: of the model's generation_config.json, this is not applied: "
            << vernier::some_of(model.ignored) << '\n';
}

std::string prompt_of(const po::variables_map& given) {
  const auto prompt = given["prompt"].as<std::string>();
  if (prompt != "-") return prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

// Bytes of a terminal's commands become visible there.
void print(const std::string& text) {
  static const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  std::cout << (is_terminal ? vernier::printable(text, "\n\t") : text) << std::flush;
  if (!std::cout) throw vernier::Error("the text cannot be written to standard output");
}

class Generator {
 public:
  Generator(const vernier::Prepared& prepared, Settings settings, const std::string& tokenizer)
      : model_(model_of(prepared)),
        codec_(model_, tokenizer),
        settings_(std::move(settings)),
        device_(prepared.run.device) {
    if (const auto end = codec_.end_of_text()) settings_.options.ends.push_back(*end);
    for (const auto& word : model_.end_words()) {
      if (const auto end = codec_.id(word)) settings_.options.ends.push_back(*end);
    }
    for (const auto& stop : settings_.stops) {
      if (const auto token = codec_.special(stop)) settings_.options.ends.push_back(*token);
    }
  }

  vernier::Completion complete(const std::string& prompt, std::uint64_t more_seed,
                               std::function<void(const std::string&)> print) const {
    const auto tokens = codec_.encode(prompt);
    vernier::TextStream stream(codec_, tokens, settings_.stops, std::move(print));
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(settings_.seed + more_seed);
    const auto end = vernier::generate(model_, tokens, settings_.options, device_, generator,
                                       [&](TokenId token) { return stream.add(token) && stop_signal == 0; });
    if (stop_signal != 0) throw vernier::Error("stopped", vernier::Error::Kind::training);
    if (end == GenerationEnd::not_finite) {
      throw vernier::Error(
          c10::str("the model gives no finite probabilities after ", stream.tokens(), " tokens; has the run diverged?"),
          vernier::Error::Kind::training);
    }
    stream.finish();
    return {stream.text(), stream.tokens(), end};
  }

 private:
  vernier::LanguageModel& model_;
  vernier::Codec codec_;
  Settings settings_;
  torch::Device device_;
};

int run(const po::variables_map& given) {
  const bool is_batch = given.count("input") != 0;
  if (is_batch) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, remember_stop);
  }
  if (is_batch == (given.count("prompt") != 0)) vernier::refuse("give either --prompt TEXT or --input FILE.jsonl");
  if (!is_batch && given.count("output") != 0) {
    vernier::refuse("--output is for --input; a completion is printed, so write `… --prompt TEXT > FILE`");
  }
  const auto text = [&](const char* name) { return vernier::word_or(given, name, ""); };
  auto settings = read_settings(given);
  const auto lines = is_batch ? vernier::read_prompts(text("input")) : std::vector<vernier::PromptLine>();
  const auto prepared = load(given);
  apply(vernier::read_model_settings(model_of(*prepared).model_folder()), given, settings);
  const Generator generator(*prepared, std::move(settings), text("tokenizer"));
  // Within an evaluation, so that precision and averages are those of a validation.
  prepared->trainer.validation().evaluate(prepared->run, [&] {
    if (is_batch) {
      vernier::write_completions(lines, text("input"), text("output"), [&](const vernier::PromptLine& line) {
        return generator.complete(line.prompt, line.number, [](const auto&) {});
      });
      return torch::Tensor();
    }
    const auto completion = generator.complete(prompt_of(given), 0, print);
    print("\n");
    if (completion.end == GenerationEnd::longest) {
      std::cerr << "vernier: the text ends here because it is as long as the model has positions; --slide goes on\n";
    }
    return torch::Tensor();
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description known;
  const auto number = [](double fallback) { return po::value<double>()->default_value(fallback); };
  const auto whole = [](std::int64_t fallback) { return po::value<std::int64_t>()->default_value(fallback); };
  known.add_options()("prompt", po::value<std::string>())("input", po::value<std::string>())(
      "output", po::value<std::string>())("tokenizer", po::value<std::string>())("max-tokens", whole(100))(
      "stop", po::value<Words>())("seed", whole(1))("repetition-penalty", number(1))("temperature", number(1))(
      "top-k", whole(0))("top-p", number(1))("min-p", number(0))("no-cache", "")("slide", "")(
      "set", po::value<Words>())("plugin-path", po::value<Words>());
  return vernier::call_verb({"generate", usage, known, run}, argc, argv);
}
