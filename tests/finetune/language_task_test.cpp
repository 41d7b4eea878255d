// The data of task/llama and task/gpt: perplexity with a stride, and texts through a tokenizer.
#include <ATen/ops/cross_entropy_loss.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/function.h>
#include <vernier/data/supervised_task.h>
#include <vernier/published_model.h>
#include <vernier/safetensors.h>
#include <vernier/text/tokenizer.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "loaded_task.h"
#include "log_lines.h"
#include "published_folder.h"
#include "small_run.h"
#include "thrown.h"

namespace language_task_test {

using published_folder::PublishedFolder;
using vernier::Table;

namespace {

constexpr double tolerance = 1e-5;
const std::string tokenizer = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/gpt2";

torch::Tensor logits_of(const LoadedTask& task, vernier::Batch batch) {
  const torch::NoGradGuard no_grad;
  return static_cast<vernier::SupervisedTask&>(*task.task).forward(batch);
}

double sum_of_losses(const torch::Tensor& logits, const torch::Tensor& targets) {
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).item<double>();
}

// A model with random weights for the tokenizer's vocabulary, and files of texts.
struct Texts {
  explicit Texts(const std::string& variant, const std::string& lines = default_lines)
      : given(variant, [](auto& config, auto&) { config["vocab_size"] = vocabulary(); }) {
    given.folder.write("texts.jsonl", lines);
  }
  static std::int64_t vocabulary() { return vernier::open_tokenizer(tokenizer)->vocabulary(); }
  std::string path() const { return given.folder / "texts.jsonl"; }
  Table table(Table more) const {
    Table table = {{"data", list<std::string>({path()})},
                   {"weights", value("random")},
                   {"tokenizer", value(tokenizer)},
                   {"context", value(16)},
                   {"batch_size", value(100)}};
    for (auto& [key, entry] : more) table[key] = entry;
    return table;
  }
  static constexpr const char* default_lines =
      "{\"text\": \"one two\"}\n{\"prompt\": \"what is it?\", \"completion\": \" naïve\"}\n{\"text\": \"x\"}\n"
      "{\"prompt\": \"a\", \"completion\": \"bcd\"}\n{\"text\": \"It goes on, and on.\"}\n";
  PublishedFolder given;
};

Table only_of_texts(const PublishedFolder& given, const Table& table) {
  auto all = given.table();
  all.erase("stride");
  for (const auto& [key, entry] : table) all[key] = entry;
  return all;
}

LoadedTask load(const Texts& texts, Table more = {}) {
  return LoadedTask(published_folder::task_of(texts.given.variant),
                    only_of_texts(texts.given, texts.table(std::move(more))));
}

// Returns what the task holds out when `vernier evaluate` makes it of a trained one, with other options.
std::string held_out_of(const LoadedTask& trained, const Texts& texts, Table more, const vernier::State& changes = {}) {
  auto learned = dynamic_cast<vernier::SupervisedTask&>(*trained.task).learned();
  learned.put("", changes);
  const auto task = make_plugin<vernier::Task>("task/gpt", only_of_texts(texts.given, texts.table(std::move(more))));
  dynamic_cast<vernier::SupervisedTask&>(*task).use_learned(std::move(learned), /*reads_data=*/true);
  vernier::TrainerRun run;
  run.seed = trained.run.seed;
  task->prepare(run);
  return task->save().text("held_out");
}

torch::Tensor gradient_of(const LoadedTask& task) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : task.run.parameters) all.push_back(parameter.model.grad().flatten());
  return at::cat(all);
}

}  // namespace

TEST_CASE("language task: perplexity with a stride is that of a plain loop over the tokens") {
  for (const char* variant : {"gpt2", "llama_grouped"}) {
    const PublishedFolder given(variant);
    const auto tokens = given.oracle["tokens"].flatten();  // 42
    constexpr std::int64_t context = 8;
    for (const std::int64_t option : {0, 1, 3, 5, 7, 8}) {  // 0: the context, and the last tokens count too
      CAPTURE(option);
      const auto stride = option == 0 ? context : option;
      auto task = given.load({{"validation", list<std::string>({given.folder / "tokens.bin"})},
                              {"context", value(context)},
                              {"validation_stride", value(option)}});
      const double loss = task.validate();
      double sum = 0;
      std::int64_t predicted = 0, seen = 0;
      for (std::int64_t begin = 0; seen + 1 < tokens.size(0); begin += stride) {
        begin = std::min(begin, tokens.size(0) - 1 - context);
        const auto logits = logits_of(task, {{tokens.slice(0, begin, begin + context).unsqueeze(0)}, 1})[0];
        const auto first = seen - begin, count = begin + context - seen;
        CHECK((begin == 0 || first >= context - stride));
        sum += sum_of_losses(logits.narrow(0, first, count), tokens.narrow(0, seen + 1, count));
        predicted += count;
        seen = begin + context;
      }
      CHECK(predicted == tokens.size(0) - 1);
      CHECK(loss == doctest::Approx(sum / static_cast<double>(predicted)).epsilon(1e-6));
      CHECK(task.run.metrics.value("perplexity").value() == doctest::Approx(std::exp(loss)));
    }
  }
}

TEST_CASE("language task: a packed row has the loss and the gradient of its texts one by one") {
  for (const char* variant : {"gpt2", "gpt2_by_layer", "llama", "llama_grouped", "llama_yarn"}) {
    CAPTURE(variant);
    const Texts texts(variant);
    const auto packed = load(texts), alone = load(texts, {{"packing", value(false)}});
    const auto rows = packed->next(), single = alone->next();
    CHECK(rows.samples < single.samples);
    CHECK(rows.tensors[3].max().item<std::int64_t>() > 1);
    // Tokens are the inputs, also those of prompts, which are not learned but for what follows their last token.
    std::int64_t inputs = (rows.tensors[1] >= 0).sum().item<std::int64_t>();
    for (const char* prompt : {"what is it?", "a"}) {
      inputs += std::ssize(vernier::open_tokenizer(tokenizer)->encode(prompt)) - 1;
    }
    CHECK(rows.tokens == inputs);
    CHECK(single.tokens == rows.tokens);
    CHECK(rows.tokens < rows.tensors[0].numel());
    const auto loss = packed->loss(rows), other = alone->loss(single);
    CHECK(loss.item<double>() == doctest::Approx(other.item<double>()).epsilon(tolerance));
    loss.backward();
    other.backward();
    CHECK(distance(gradient_of(packed), gradient_of(alone)) <= tolerance);
  }
}

TEST_CASE("language task: a large vocabulary has the loss, the gradient and the validation of all its logits") {
  for (const char* variant : {"gpt2", "llama_grouped"}) {  // a head that is tied, and one that is not
    CAPTURE(variant);
    const PublishedFolder given(variant, [](auto& config, auto&) { config["vocab_size"] = 120'000; });
    auto task = given.load({{"weights", value("random")},
                            {"token_type", value("uint16")},
                            {"context", value(20)},
                            {"stride", value(1)},
                            {"batch_size", value(20)},
                            {"validation", list<std::string>({given.folder / "tokens.bin"})},
                            {"validation_stride", value(1)}});
    const auto batch = task->next();
    const auto tokens = batch.tensors[1].numel();
    CHECK(tokens * 120'000 * 4 > 100'000'000);  // so much that the head works in chunks
    const auto whole = [&](const torch::Tensor& logits) {
      return at::cross_entropy_loss(logits.flatten(0, 1), batch.tensors[1].flatten());
    };
    const auto expected = whole(static_cast<vernier::SupervisedTask&>(*task.task).forward(batch));
    expected.backward();
    const auto gradient = gradient_of(task);
    for (const auto& parameter : task.run.parameters) parameter.model.mutable_grad() = torch::Tensor();
    const auto loss = task->loss(batch);
    CHECK(std::string(loss.grad_fn()->name()).find("LinearCrossEntropy") != std::string::npos);
    loss.backward();
    CHECK(loss.item<double>() == doctest::Approx(expected.item<double>()).epsilon(1e-6));
    CHECK(distance(gradient_of(task), gradient) <= tolerance);
    CHECK(std::isfinite(task.validate()));
    CHECK(task.run.metrics.value("perplexity").value() > 1e4);
  }
}

TEST_CASE("language task: only answers are learned, and the loss is the mean over their tokens") {
  const Texts texts("gpt2", "{\"prompt\": \"what is it?\", \"completion\": \" naïve\"}\n");
  const auto opened = vernier::open_tokenizer(tokenizer);
  auto ids = opened->encode("what is it? naïve");
  ids.push_back(*opened->end_of_text());
  const auto all = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
  const auto answer = std::ssize(ids) - std::ssize(opened->encode("what is it?"));
  for (const bool learns_all : {false, true}) {
    const auto task = load(
        texts, {{"learn", value(learns_all ? "all" : "answers")}, {"context", value(20)}, {"packing", value(false)}});
    const auto logits = logits_of(task, {{all.narrow(0, 0, all.size(0) - 1).unsqueeze(0)}, 1, 0});
    const auto learned = learns_all ? all.size(0) - 1 : answer;
    const auto expected = sum_of_losses(logits[0].slice(0, -learned), all.slice(0, -learned));
    CHECK(task->loss(task->next()).item<double>() ==
          doctest::Approx(expected / static_cast<double>(learned)).epsilon(1e-6));
  }
}

TEST_CASE("language task: a batch of texts has the same gradient in micro-batches of any size") {
  const Texts texts("llama_grouped");
  const auto whole = load(texts, {{"packing", value(false)}}), parts = load(texts, {{"packing", value(false)}});
  const auto batch = whole->next();
  REQUIRE(batch.samples == 5);
  whole->loss(batch).backward();
  const auto same = parts->next();
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 3}, {4, 1}}) {
    const auto part = same.narrow(first, count);
    (parts->loss(part) * (*parts->weight_of(part) / *parts->weight_of(same))).backward();
  }
  CHECK(distance(gradient_of(parts), gradient_of(whole)) <= tolerance);
}

TEST_CASE("language task: validation of texts is the mean over their learned tokens, whatever the batch") {
  const Texts texts("gpt2");
  std::vector<double> losses;
  for (const int size : {1, 2, 100}) {
    auto task = load(texts, {{"validation", list<std::string>({texts.path()})},
                             {"packing", value(size != 2)},
                             {"batch_size", value(size)}});
    losses.push_back(task.validate());
  }
  const auto whole = load(texts);
  losses.push_back(whole->loss(whole->next()).item<double>());
  for (const double loss : losses) CHECK(loss == doctest::Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("language task: texts in rows of their own turn as their longest does, however far rows are filled up") {
  for (const char* variant : {"llama_dynamic", "phi3_long"}) {  // they turn otherwise beyond 16 tokens
    CAPTURE(variant);
    const Texts texts(variant, "{\"text\": \"one two\"}\n{\"text\": \"x\"}\n");
    std::vector<double> losses;
    for (const int context : {16, 24}) {
      auto task = load(
          texts,
          {{"context", value(context)}, {"packing", value(false)}, {"validation", list<std::string>({texts.path()})}});
      losses.push_back(task->loss(task->next()).item<double>());
      losses.push_back(task.validate());
    }
    for (const double loss : losses) CHECK(loss == doctest::Approx(losses[0]).epsilon(1e-6));
  }
}

TEST_CASE("language task: a trained model is evaluated on what its training held out, or on the files that are named") {
  const Texts texts("gpt2");
  const auto& folder = texts.given.folder;
  std::map<std::string, vernier::Value> files;
  for (const std::string name : {"held", "test", "new"}) {
    folder.write(name + ".jsonl", "{\"text\": \"" + name + " one\"}\n{\"text\": \"two\"}\n");
    files[name] = list<std::string>({folder / (name + ".jsonl")});
  }
  const auto of = [](const LoadedTask& task) { return task->save().text("held_out"); };
  const auto drawn = load(texts, {{"validation_share", value(0.4)}});
  CHECK(held_out_of(drawn, texts, {{"validation_share", value(0.4)}}) == of(drawn));
  const Table others[] = {{{"context", value(8)}, {"validation_share", value(0.4)}},
                          {{"packing", value(false)}, {"validation_share", value(0.4)}},
                          {{"validation_share", value(0.7)}}};
  for (auto more : others) {
    const auto refused = refusal([&] { held_out_of(drawn, texts, more); });
    CHECK_MESSAGE(contains(refused, "name other data, as in --set 'task.validation="), refused);
    more["validation"] = files["test"];
    CHECK(refusal([&] { held_out_of(drawn, texts, more); }).empty());
  }
  const auto trained = load(texts, {{"validation", files["held"]}});
  for (const bool has_changed : {false, true}) {
    CAPTURE(has_changed);
    if (has_changed) folder.write("texts.jsonl", std::string(Texts::default_lines) + "{\"text\": \"more\"}\n");
    CHECK(held_out_of(trained, texts, {{"validation", files["held"]}}) == of(trained));
    CHECK(held_out_of(trained, texts, {{"validation", files["test"]}}) ==
          of(load(texts, {{"validation", files["test"]}})));
    CHECK(held_out_of(trained, texts, {{"validation", files["held"]}, {"data", files["new"]}}) ==
          of(load(texts, {{"validation", files["new"]}})));
  }
  // A checkpoint may be a stranger's.
  for (const std::string& name : {folder / "written", std::string("../written"), std::string("x.txt")}) {
    const vernier::State evil = {{"files/" + name, torch::ones({3}, torch::kUInt8)}};
    const auto refused = refusal([&] { held_out_of(trained, texts, {{"validation", files["held"]}}, evil); });
    CHECK_MESSAGE(contains(refused, "which Vernier never puts there"), refused);
  }
  CHECK(!std::filesystem::exists(folder / "written"));
}

TEST_CASE("language task: files are drawn from by their shares") {
  const PublishedFolder given("gpt2");
  std::string ones, twos;
  for (int i = 0; i < 200; ++i) ones += std::string("\x01\0", 2);
  for (int i = 0; i < 2000; ++i) twos += std::string("\x02\0", 2);
  given.folder.write("ones.bin", ones);
  given.folder.write("twos.bin", twos);
  const auto count = [&](std::vector<double> shares, double held_out, const std::string& second = "twos.bin") {
    auto table = given.table({{"data", list<std::string>({given.folder / "ones.bin", given.folder / second})},
                              {"shares", list(shares)},
                              {"stride", value(4)},
                              {"context", value(4)},
                              {"validation_share", value(held_out)},
                              {"batch_size", value(500)}});
    table.erase("order");
    const LoadedTask task("gpt", table);
    return (task->next().tensors[0].select(1, 0) == 1).sum().item<double>() / 500;
  };
  for (const double held_out : {0.0, 0.2}) {
    CHECK(count({3, 1}, held_out) == doctest::Approx(0.75).epsilon(0.1));
    CHECK(count({1, 1}, held_out) == doctest::Approx(0.5).epsilon(0.1));
    CHECK(count({0, 2}, held_out) == 0);
  }
  given.folder.write("few.bin", twos.substr(0, 10));  // one window, which is held out
  CHECK(contains(refusal([&] {
                   count({1, 1}, 0.2, "few.bin");
                 }),
                 "few.bin' has the share 1, and all of it is held out"));
  CHECK(count({1, 0}, 0.2, "few.bin") > 0);
}

TEST_CASE("language task: each validation continues the prompts, and changes no random number") {
  const Texts texts("llama_grouped");
  auto task = load(texts, {{"validation", list<std::string>({texts.path()})},
                           {"sample_prompts", list<std::string>({"one", "It goes"})},
                           {"sample_tokens", value(12)}});
  const LogLines log;
  torch::manual_seed(5);
  task.validate();
  const auto after = torch::rand({4});
  torch::manual_seed(5);
  CHECK(torch::equal(after, torch::rand({4})));
  const auto first = LogLines::lines();
  CHECK(LogLines::count("sample after step 0:\none") == 1);
  CHECK(LogLines::count("sample after step 0:\nIt goes") == 1);
  LogLines::lines().clear();
  task.validate();
  CHECK(LogLines::lines() == first);
  LogLines::lines().clear();
  task.run.step = 1;
  task.validate();
  CHECK(LogLines::lines() != first);
  const auto refused = [&](Table more) { return refusal([&] { load(texts, std::move(more)); }); };
  const auto prompts = list<std::string>({"one"});
  CHECK(contains(refused({{"sample_tokens", value(3)}}), "give `sample_prompts`"));
  CHECK(contains(refused({{"sample_prompts", list<std::string>({""})}}), "has 0 tokens, and must have one at least"));
  const PublishedFolder plain("gpt2");
  CHECK(contains(plain.refusal_of({{"sample_prompts", prompts}}), "needs a tokenizer"));
  const auto endless = list<std::string>({std::string(200, '!') + "?a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p"});
  CHECK(
      contains(plain.refusal_of({{"sample_prompts", endless}, {"tokenizer", value(tokenizer)}}), "must have 1 to 24"));
}

TEST_CASE("language task: a prompt is the question of a user where chats are learned") {
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]})";
  // a line of the file, and how the sample begins
  const std::vector<std::pair<std::string, std::string>> cases = {{chat, "user\none\nassistant\n"},
                                                                  {R"({"text": "one two three"})", "one"}};
  for (const auto& [line, begin] : cases) {
    CAPTURE(line);
    const Texts texts("gpt2", line + "\n" + line + "\n");
    auto task = load(texts, {{"validation", list<std::string>({texts.path()})},
                             {"context", value(24)},
                             {"new_tokens", list<std::string>({"<|im_start|>", "<|im_end|>"})},
                             {"sample_prompts", list<std::string>({"one"})},
                             {"sample_tokens", value(2)}});
    const LogLines log;
    task.validate();
    CHECK(LogLines::count("sample after step 0:\n" + begin) == 1);
  }
}

TEST_CASE("language task: a context beyond max_position_embeddings is a warning") {
  for (const std::int64_t positions : {4, 4096}) {
    const PublishedFolder given("llama_grouped",
                                [&](auto& config, auto&) { config["max_position_embeddings"] = positions; });
    const LogLines log;
    given.load();
    CHECK(LogLines::count("was made for 4 tokens (max_position_embeddings)") == (positions == 4 ? 1 : 0));
  }
}

TEST_CASE("language task: mistakes in the data are refused in one line") {
  const Texts texts("gpt2");
  const PublishedFolder& given = texts.given;
  given.folder.write("torn.jsonl", "{\"text\": \n");
  given.folder.write("chat.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})");
  const auto other = given.folder / "torn.jsonl", tokens = given.folder / "tokens.bin";
  const auto refused = [&](Table more) { return refusal([&] { load(texts, std::move(more)); }); };
  const std::vector<std::pair<Table, std::string>> cases = {
      {{{"data", list<std::string>({texts.path(), tokens})}}, "is a file of tokens, and"},
      {{{"validation", list<std::string>({tokens})}}, "is a file of tokens, and"},
      {{{"tokenizer", value("nowhere")}}, "nowhere"},
      {{{"tokenizer", value("")}}, "has no tokenizer; name the folder of one with `tokenizer`"},
      {{{"data", list<std::string>({other})}}, "torn.jsonl"},
      {{{"data", list<std::string>({given.folder / "chat.jsonl"})}}, "<|im_start|>"},
      {{{"data", list<std::string>({"none.txt"})}}, "none.txt"},
      {{{"stride", value(3)}}, "`stride` is for files of tokens"},
      {{{"validation_stride", value(3)}}, "`validation_stride` is for files of tokens"},
      {{{"learn", value("questions")}}, "answers"},
      {{{"shares", list<double>({1, 2})}}, "has 2 numbers, and `data` 1 files"},
      {{{"shares", list<double>({0})}}, "has no number above 0"},
      {{{"shares", list<double>({1})}}, "`order` has no effect with `shares`"},
      {{{"context", value(25)}}, "has positions for 24 tokens"},
  };
  for (const auto& [more, message] : cases) {
    const auto text = refused(more);
    CHECK_MESSAGE(contains(text, message), text, " is the error, and should have: ", message);
    CHECK(text.find('\n') == std::string::npos);
  }
  const PublishedFolder dynamic("llama_dynamic",
                                [](auto& config, auto&) { config["vocab_size"] = Texts::vocabulary(); });
  auto table = only_of_texts(dynamic, texts.table({{"context", value(20)}}));
  table["folder"] = value(dynamic.folder / "model");
  CHECK(contains(refusal([&] { LoadedTask("llama", table); }), "set packing = false"));
  table["packing"] = value(false);
  CHECK(refusal([&] { LoadedTask("llama", table); }).empty());
  const PublishedFolder plain("gpt2");
  for (const auto& [more, message] : std::vector<std::pair<Table, std::string>>{
           {{{"packing", value(true)}}, "`packing` is for texts"},
           {{{"validation_stride", value(3)}}, "needs files in `validation`"},
           {{{"stride", value(19)}, {"validation_share", value(0.5)}},
            "`stride` is below context = 20, so held-out windows"},
           {{{"stride", value(19)}}, ""},
           {{{"stride", value(20)}, {"validation_share", value(0.5)}}, ""},
           {{{"validation_stride", value(21)}, {"validation", list<std::string>({tokens})}}, "is above context = 20"},
           {{{"data", list<std::string>({})}}, ""}}) {
    const auto text = plain.refusal_of(more);
    CHECK_MESSAGE(contains(text, message), text);
    CHECK(text.empty() == message.empty());
  }
  auto without = plain.table();
  without.erase("data");
  CHECK(contains(refusal([&] { LoadedTask("gpt", without); }), "`data` is needed"));
  const auto unused = plain.load({{"data", list<std::string>({})}});
  CHECK(contains(refusal([&] { unused->next(); }), "nothing to train on"));
}

TEST_CASE("language task: new tokens get rows that are the mean of the others, in the export too") {
  for (const char* variant : {"gpt2", "gpt2_untied", "llama", "llama_tied"}) {
    CAPTURE(variant);
    const Texts texts(variant, "{\"text\": \"one <a> two<b>\"}\n{\"text\": \"three<a>\"}\n");
    const auto old = load(texts);
    const auto task_of = [](const LoadedTask& loaded) { return dynamic_cast<vernier::PublishedModel*>(&*loaded.task); };
    task_of(old)->write_published(texts.given.folder / "old");
    const Table more = {{"folder", value(texts.given.folder / "old")},
                        {"weights", value("folder")},
                        {"new_tokens", list<std::string>({"<a>", "<|endoftext|>", "<b>"})}};
    const auto grown = load(texts, more);
    task_of(grown)->write_published(texts.given.folder / "grown");
    const auto before = vernier::load_safetensors(texts.given.folder / "old/model.safetensors"),
               after = vernier::load_safetensors(texts.given.folder / "grown/model.safetensors");
    const auto size = Texts::vocabulary();
    std::size_t changed = 0;
    for (const auto& [name, tensor] : after) {
      const auto& was = before.at(name);
      if (tensor.sizes() == was.sizes()) {
        CHECK(torch::equal(tensor, was));
        continue;
      }
      ++changed;
      CHECK(tensor.size(0) == size + 2);
      CHECK(torch::equal(tensor.slice(0, 0, size), was));
      CHECK(distance(tensor.slice(0, size), was.mean(0).expand({2, was.size(1)})) <= 1e-6);
    }
    CHECK(changed == (std::string(variant).ends_with("untied") || std::string(variant) == "llama" ? 2 : 1));
    const auto written = vernier::open_tokenizer(texts.given.folder / "grown");
    CHECK(written->id("<a>") == size);
    CHECK(written->id("<b>") == size + 1);
    const auto batch = grown->next();
    CHECK((batch.tensors[0] == size).sum().item<std::int64_t>() +
              (batch.tensors[1] == size).sum().item<std::int64_t>() >
          0);
    grown->loss(batch).backward();
  }
}

TEST_CASE("language task: new tokens that do not fit are refused") {
  const Texts texts("llama");
  struct Wrong {
    std::vector<std::string> words;
    const char* message;
  };
  const Wrong all[] = {{{"<a>", "<a>"}, "twice"}, {{""}, "an empty word"}};
  for (const auto& [words, message] : all) {
    const auto thrown = thrown_by([&, &words = words] { load(texts, {{"new_tokens", list(words)}}); });
    CHECK_MESSAGE(says(thrown.text, message), thrown.text);
  }
}

TEST_CASE("language task: layer_decay gives each layer the rate that a group by hand would, to the bit") {
  for (const char* variant : {"gpt2", "llama"}) {  // two layers each
    CAPTURE(variant);
    const PublishedFolder given(variant);
    const bool is_gpt = std::string(variant) == "gpt2";
    const auto toml = [&](const std::string& optimizer) {
      return from_toml({"[run]\nsteps = 3\ndevice = 'cpu'\n[task]\nuse = '" + published_folder::task_of(variant) +
                        "'\nfolder = '" + (given.folder / "model") + "'\ndata = ['" + (given.folder / "tokens.bin") +
                        "']\ncontext = 8\ndropout = 0.0\nvalidation_share = 0.0\n[checkpoint]\nuse = 'none'\n"
                        "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.01\n" +
                        optimizer});
    };
    const auto group = [](const std::string& match, double rate) {
      return "[[optimizer.group]]\nmatch = [" + match + "]\nlearning_rate = " + std::to_string(rate) + "\n";
    };
    SmallRun decayed(toml("layer_decay = 0.5\n"));
    SmallRun by_hand(toml(
        is_gpt ? group("'wte.*', 'wpe.*'", 0.00125) + group("'h.0.*'", 0.0025) + group("'h.1.*'", 0.005)
               : group("'*embed_tokens.*'", 0.00125) + group("'*layers.0.*'", 0.0025) + group("'*layers.1.*'", 0.005)));
    decayed.train();
    by_hand.train();
    CHECK(decayed.digest() == by_hand.digest());
  }
}

TEST_CASE("language task: layer_decay multiplies both learning rates of muon") {
  const PublishedFolder given("gpt2");
  const auto toml = [&](const std::string& optimizer) {
    return from_toml({"[run]\nsteps = 3\ndevice = 'cpu'\n[task]\nuse = 'gpt'\nfolder = '" + (given.folder / "model") +
                      "'\ndata = ['" + (given.folder / "tokens.bin") +
                      "']\ncontext = 8\ndropout = 0.0\nvalidation_share = 0.0\n[checkpoint]\nuse = 'none'\n"
                      "[optimizer]\nuse = 'muon'\nlearning_rate = 0.01\nadamw_learning_rate = 0.001\n" +
                      optimizer});
  };
  const auto group = [](const std::string& match, const char* rate, const char* of_adamw) {
    return "[[optimizer.group]]\nmatch = [" + match + "]\nlearning_rate = " + rate +
           "\nadamw_learning_rate = " + of_adamw + "\n";
  };
  SmallRun decayed(toml("layer_decay = 0.5\n"));
  SmallRun by_hand(toml(group("'wte.*', 'wpe.*'", "0.00125", "0.000125") + group("'h.0.*'", "0.0025", "0.00025") +
                        group("'h.1.*'", "0.005", "0.0005")));
  decayed.train();
  by_hand.train();
  CHECK(decayed.digest() == by_hand.digest());
}

}  // namespace language_task_test
