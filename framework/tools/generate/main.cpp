// `vernier generate`: continues texts with the model of a run, or with a published one.
#include <unistd.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "batch.h"
#include "call_settings.h"
#include "common/config/config.h"
#include "common/config/plugin_folders.h"
#include "common/log.h"
#include "common/output_file.h"
#include "common/own_runs.h"
#include "common/text/quoting.h"
#include "common/verb.h"
#include "server.h"
#include "tools/model/trained_run.h"
#include "wiring/wiring.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using vernier::GenerationEnd;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier generate RUN --prompt TEXT
       vernier generate RUN --input FILE.jsonl --output FILE.jsonl
       vernier generate RUN --listen ADDRESS:PORT

Continues texts with the language model of a run, of one of its checkpoints, or of a published folder with config.json.
Prints what follows the prompt, token by token.

  --prompt TEXT        the text to continue; "-": standard input
  --chat               answers a chat: the prompt is the message of a user, or a JSON array of messages
  --input FILE         JSON Lines instead: each line has a text in "prompt", or a chat in "messages"
  --output FILE        the lines again, with "completion", "tokens" and "end"; without it, on standard output
  --force              replaces a file that is there
  --count NUMBER       completions of each line (1); several are in "completions"
  --logprobs NUMBER    writes the log-probability of each token, and the NUMBER likeliest tokens in its place
  --batch NUMBER       texts that are computed together (1); faster, and equal up to rounding
  --tokenizer FOLDER   the tokenizer; else that of the published folder; without one, bytes if the model reads bytes,
                       or else the numbers of tokens
  --max-tokens NUMBER  tokens of a completion at most (100)
  --min-tokens NUMBER  before so many tokens no end is drawn (0)
  --stop TEXT          ends a completion before this text; may be repeated
  --seed NUMBER        of the draws (1); line n of a file has this seed + n

how the next token is drawn, in this order; defaults are those of the model's generation_config.json, or else these
  --repetition-penalty NUMBER  makes tokens that the text has less likely; 1: does not (1)
  --no-repeat-ngram NUMBER     no sequence of so many tokens comes twice; 0: any may (0)
  --temperature NUMBER         divides the logits; 0: always the likeliest token (1)
  --top-k NUMBER               among the k likeliest; 0: all (0)
  --top-p NUMBER               among the fewest whose probabilities sum up to it (1)
  --min-p NUMBER               among those with at least this share of the largest probability (0)

or the likeliest texts instead of draws
  --beams NUMBER               keeps so many texts at a time, by beam search (1: none)
  --length-penalty NUMBER      divides the sum of log-probabilities by the length to this power (1)
  --early-stopping WORD        yes: ends with as many complete texts as beams; no, or never (no)

  --no-cache           computes the whole text for each token; the tokens are the same, and it takes longer
  --slide              beyond the positions of the model each token follows from the last ones, without the cache; else
                       the text ends there
  --set KEY=VALUE      changes the run's configuration, as in --set precision.use=bf16
  --weights average|model  average: of callback/ema and the like, if the run has one (the default); model: without
  --trust              runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER looks for plugins there first

a server that speaks OpenAI's requests for completions and chats, on this machine
  --listen ADDRESS:PORT  127.0.0.1:8000; port 0: one that the system chooses
  --tokens FILE          file with the token, which clients give as their API key (generate.tokens); it is made where
                         there is none
  --queue NUMBER         requests that may wait; more are answered with 503 (16)
  --longest-prompt NUMBER  tokens that a prompt may have; 0: as many as the model was made for (0)
)";

std::atomic<int> stop_signal = 0;

// A file of completions is not left half written. A second signal ends the process.
extern "C" void remember_stop(int signal) {
  stop_signal = signal;
  std::signal(signal, SIG_DFL);
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
  if (type.empty()) vernier::refuse(path + ": names no model_type");
  return type == "gpt2" ? "gpt" : "llama";  // `llama` knows its relatives, and refuses others by name
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
  if (given.count("trust") != 0) vernier::trust_runs();
  const vernier::Host host(vernier::plugin_folders(vernier::words_in(given, "plugin-path"), "--plugin-path ", {}));
  const auto sets = vernier::words_in(given, "set");
  if (fs::exists(fs::path(path) / "config.json") && !fs::exists(fs::path(path) / "config.toml")) {
    return load_folder(path, sets, host);
  }
  const bool changes_data = std::ranges::any_of(sets, [](const auto& set) { return set.starts_with("task."); });
  auto prepared =
      vernier::load_run(path, sets, host, stop_signal, changes_data ? vernier::Use::other_data : vernier::Use::model);
  vernier::choose_weights(*prepared, given);
  const auto weights = vernier::weights_in(*prepared, path);
  if (!weights.empty()) std::cerr << "vernier: " << vernier::printable(path) << weights << '\n';
  return prepared;
}

vernier::LanguageModel& model_of(const vernier::Prepared& prepared) {
  auto* model = dynamic_cast<vernier::LanguageModel*>(prepared.wiring->task.get());
  if (model != nullptr) return *model;
  vernier::refuse("generate is for tasks with a language model, and " + prepared.wiring->task->id() +
                  " has none; see docs/guides/finetune.md");
}

// A chat is the message of a user, or a JSON array of messages.
vernier::OrderedJson prompt_of(const po::variables_map& given) {
  auto prompt = given["prompt"].as<std::string>();
  if (prompt == "-") prompt = {std::istreambuf_iterator<char>(std::cin), {}};
  if (given.count("chat") == 0) return {{"prompt", prompt}};
  auto messages = vernier::json_in<vernier::OrderedJson>(prompt, vernier::deepest_prompt);
  if (!messages.is_array()) {
    if (prompt.starts_with("[{") || prompt.starts_with("{\"role\"")) {
      vernier::refuse("--prompt begins as JSON, and is not an array of messages, such as " +
                      std::string(R"([{"role": "user", "content": "Two and two?"}])"));
    }
    messages = {{{"role", "user"}, {"content", prompt}}};
  }
  return {{"messages", messages}};
}

// Bytes of a terminal's commands become visible there.
void print(const std::string& text) {
  static const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  std::cout << (is_terminal ? vernier::printable(text, "\n\t") : text) << std::flush;
  if (!std::cout) throw vernier::Error("the text cannot be written to standard output");
}

void refuse_wrong_calls(const po::variables_map& given) {
  const auto has = [&](const char* option) { return given.count(option) != 0; };
  const auto is_set = [&](const char* option) { return !given[option].defaulted(); };
  if (has("input") + has("prompt") + has("listen") != 1) {
    vernier::refuse("give either --prompt TEXT or --input FILE.jsonl, or --listen ADDRESS:PORT");
  }
  if (!has("input") && has("output")) {
    vernier::refuse("--output is for --input; a completion is printed, so write `… --prompt TEXT > FILE`");
  }
  if (has("chat") && !has("prompt"))
    vernier::refuse("--chat is for --prompt; a line of --input has \"messages\" instead");
  for (const char* option : {"count", "logprobs", "batch"}) {
    if (!has("input") && is_set(option)) vernier::refuse("--" + std::string(option) + " is for --input");
  }
  for (const char* option : {"tokens", "queue", "longest-prompt"}) {
    if (!has("listen") && is_set(option)) vernier::refuse("--" + std::string(option) + " is for --listen");
  }
  for (const char* option : {"beams", "length-penalty", "early-stopping", "seed"}) {
    if (has("listen") && is_set(option)) {
      vernier::refuse("--" + std::string(option) + " and --listen do not go together: " +
                      (option == std::string("seed") ? "a request has its own \"seed\"" : "requests draw their texts"));
    }
  }
}

void print_completion(const vernier::Generator& generator, const vernier::GenerationSettings& settings,
                      const vernier::OrderedJson& prompt) {
  bool is_begun = false;
  generator.run(settings, [&]() -> std::optional<vernier::PromptJob> {
    if (std::exchange(is_begun, true)) return std::nullopt;
    vernier::PromptJob job;
    job.prompt = generator.tokens_of(prompt, "");
    job.print = [](std::size_t, const std::string& text, auto, auto) { print(text); };
    job.done = [](const std::vector<vernier::Completion>& completions) {
      print("\n");
      if (completions.empty() || completions[0].end != GenerationEnd::longest) return;
      std::cerr << "vernier: the text ends here because it is as long as the model has positions; --slide goes on\n";
    };
    return job;
  });
}

// The model has the name of its folder.
vernier::CompletionServer server_of(const po::variables_map& given) {
  const auto path = fs::weakly_canonical(fs::absolute(vernier::words_of(given).front()));
  return {.listen = given["listen"].as<std::string>(),
          .tokens = given["tokens"].as<std::string>(),
          .model = path.filename().string(),
          .queue = static_cast<std::size_t>(vernier::number_in<std::int64_t>(given, "queue", 1, 10'000)),
          .stop_signal = &stop_signal};
}

int run(const po::variables_map& given) {
  refuse_wrong_calls(given);
  const bool is_batch = given.count("input") != 0, listens = given.count("listen") != 0;
  if (is_batch || listens) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, remember_stop);
  }
  const auto text = [&](const char* name) { return vernier::word_or(given, name, ""); };
  if (is_batch && !text("output").empty()) vernier::refuse_output(given, text("output"));
  auto settings = vernier::read_settings(given);
  const auto lines = is_batch ? vernier::read_prompts(text("input")) : std::vector<vernier::PromptLine>();
  const auto prepared = load(given);
  auto& model = model_of(*prepared);
  auto of_model = vernier::read_model_settings(model.model_folder());
  if (listens && of_model.beams) {
    of_model.ignored.push_back("num_beams = " + std::to_string(*of_model.beams));
    of_model.beams.reset();
  }
  vernier::apply(of_model, given, settings);
  const vernier::Generator generator(model, prepared->run.device, text("tokenizer"), stop_signal);
  // Within an evaluation, so that precision and averages are those of a validation.
  prepared->trainer.validation().use(prepared->run, [&] {
    if (listens) {
      if (settings.longest_prompt == 0) settings.longest_prompt = model.context();
      vernier::serve_completions(generator, settings, server_of(given));
    } else if (is_batch) {
      vernier::write_completions(generator, settings, lines, {text("input"), text("output")});
    } else {
      print_completion(generator, settings, prompt_of(given));
    }
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description known;
  const auto number = [](double fallback) { return po::value<double>()->default_value(fallback); };
  const auto whole = [](std::int64_t fallback) { return po::value<std::int64_t>()->default_value(fallback); };
  known.add_options()("chat", "")("prompt", po::value<std::string>())("input", po::value<std::string>())(
      "output", po::value<std::string>())("tokenizer", po::value<std::string>())("max-tokens", whole(100))(
      "stop", po::value<Words>())("seed", whole(1))("repetition-penalty", number(1))("temperature", number(1))(
      "top-k", whole(0))("top-p", number(1))("min-p", number(0))("min-tokens", whole(0))("no-repeat-ngram", whole(0))(
      "beams", whole(1))("length-penalty", number(1))("early-stopping", po::value<std::string>()->default_value("no"))(
      "count", whole(1))("logprobs", whole(-1))("batch", whole(1))("no-cache", "")("slide", "")(
      "listen", po::value<std::string>())("tokens", po::value<std::string>()->default_value("generate.tokens"))(
      "queue", whole(16))("longest-prompt", whole(0))("force", "")("weights", po::value<std::string>())("trust", "")(
      "set", po::value<Words>())("plugin-path", po::value<Words>());
  return vernier::call_verb({"generate", usage, known, run}, argc, argv);
}
