#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "loaded_data_task.h"
#include "python.h"
#include "task_cases.h"
#include "temporary_folder.h"
#include "tools/export/torchscript.h"

namespace text_test {

using vernier::SupervisedTask;

namespace {

const std::string texts = VERNIER_SOURCE_DIR "/tests/plugins/task/texts/";
const std::string small = "width = 16; layers = 2; heads = 2; dropout = 0.0; ";
const std::string ranked = "target = 'clicks'; kind = 'ranking'; group = 'search'; text = ['query', 'title']; ";
const std::string clicks = "target = 'clicks'; kind = 'regression'; text = ['query', 'title']; ";

std::vector<vernier::Predictor::Column> predicted(const LoadedTask& task, const std::string& path) {
  const torch::NoGradGuard no_grad;
  task.run.model->eval();
  return predictor(task).predict(supervised(task).loader_of(predictor(task).read_inputs(path)).next());
}

// Tokens with rows of different lengths, as training has them.
torch::Tensor ragged_tokens(const LoadedTask& task) {
  auto loader = supervised(task).loader_of(predictor(task).read_inputs(texts + "adverts.csv"));
  return loader.next().tensors.at(0);
}

// A trained model that reads no data.
LoadedTask made(const std::string& file, const std::string& options) {
  return LoadedTask("text", options_of(texts + file, options));
}

}  // namespace

TEST_CASE("text prints what it understood of odd files, or refuses them in one line") {
  CHECK(check_cases("text", texts) >= 40);
}

TEST_CASE("text learns classes, numbers and orders") {
  const struct {
    const char* file;
    std::string options;
    double rate, metric;
    const char* name;
  } cases[] = {{"adverts.csv", "", 0.3, 0.95, "accuracy"},
               {"snippets.jsonl", clicks, 0.03, 0.7, "r2"},
               {"results.jsonl", ranked, 0.3, 0.97, "ndcg_10"}};
  for (const auto& [file, options, rate, metric, name] : cases) {
    CAPTURE(file);
    LoadedTask task = made(file, options + small + "validation = '" + texts + file + "'");  // learned by heart
    const double before = task.validate();
    for (int step = 0; step < 300; ++step) task.descend(task->next(), rate);
    CHECK(task.validate() < before / 3);
    CHECK(*task.run.metrics.value(name) > metric);
  }
}

TEST_CASE("text computes what PyTorch's encoder does, whatever a batch is filled up with") {
  const TemporaryFolder folder;
  const bool has_torch = has_python("torch, safetensors");
  for (const bool is_regression : {false, true}) {
    CAPTURE(is_regression);
    const auto task = is_regression ? made("snippets.jsonl", clicks + small) : made("adverts.csv", small);
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    vernier::Batch batch;
    batch.tensors = {is_regression ? supervised(task).example(9).tensors.at(0) : ragged_tokens(task)};
    batch.samples = batch.tensors[0].size(0);
    const auto outputs = supervised(task).forward(batch);
    const auto padding = batch.tensors[0].eq(1).sum(1);
    REQUIRE(padding.max().item<std::int64_t>() > padding.min().item<std::int64_t>());
    for (std::int64_t i = 0; i < 5; ++i) {  // alone, without padding
      vernier::Batch one;
      one.samples = 1;
      one.tensors = {
          batch.tensors[0].narrow(0, i, 1).narrow(1, 0, batch.tensors[0].size(1) - padding[i].item<std::int64_t>())};
      CHECK(supervised(task).forward(one)[0].allclose(outputs[i], 1e-4, 1e-5));
    }
    if (!has_torch) continue;
    vernier::save_safetensors(folder / "weights.safetensors", vernier::state_dict(*task.run.model).tensors);
    vernier::save_safetensors(folder / "batch.safetensors", {{"tokens", batch.tensors[0]}, {"outputs", outputs}});
    std::string out;
    CHECK_MESSAGE(python("'" + texts + "reference.py' 2 2", folder.path(), out) == 0, out);
  }
}

TEST_CASE("text: a batch of a ranking has whole groups, and its loss is that of their pairs") {
  const TemporaryFolder folder;
  // Groups of two, three and one text, apart from each other in the file.
  const auto path = folder.write("a.csv", "text,label,search\na,2,x\nb,0,y\nc,1,x\nd,3,y\ne,3,y\nf,9,z\n");
  const auto options = options_of(path, small + "kind = 'ranking'; group = 'search'; validation_share = 0; " +
                                            "order = 'sequential'; batch_size = 3; length = 8");
  const LoadedTask task("text", options);
  task.run.model->eval();
  const auto batch = task->next();
  CHECK(batch.samples == 3);
  REQUIRE(has_shape(batch.tensors.at(1), {3, 3}));
  const double nan = std::nan("");
  const auto expected = torch::tensor({{2., 1., nan}, {0., 3., 3.}, {9., nan, nan}}, torch::kFloat64);
  CHECK(batch.tensors[1].allclose(expected, 0, 0, /*equal_nan=*/true));
  CHECK(task->where(1) == "'" + path + "' line 3");
  const torch::NoGradGuard no_grad;
  CHECK(batch.tensors[0][0][2].eq(1).all().item<bool>());  // padding
  const auto scores = supervised(task).forward(batch).to(torch::kFloat64);
  CHECK(scores.masked_select(batch.tensors[1].isnan()).eq(0).all().item<bool>());
  CHECK(has_shape(supervised(task).example(2).tensors.at(0), {2, batch.tensors[0].size(2)}));  // exports have two rows
  const auto pair = [&](int group, int better, int worse) {
    return std::log1p(std::exp((scores[group][worse] - scores[group][better]).item<double>()));
  };
  const double loss = (pair(0, 0, 1) + (pair(1, 1, 0) + pair(1, 2, 0)) / 2) / 3;
  CHECK(task->loss(batch).item<double>() == doctest::Approx(loss).epsilon(1e-6));
  // Whole groups are held out, and the training set has the others.
  const LoadedTask split("text", options_of(path, small + "kind = 'ranking'; group = 'search'; split = 'last'; " +
                                                      "validation_share = 0.3; batch_size = 9"));
  CHECK(split->next().samples == 2);
}

// A batch is as wide as its longest text and its largest group, and accumulation/target puts several together.
TEST_CASE("text: batches of any widths are put together for one update") {
  const TemporaryFolder folder;
  std::string rows = "text,label,search\n";
  for (int i = 0; i < 40; ++i) {
    rows += i % 7 == 0 ? "a" : i % 3 == 0 ? "one two three" : "four five";
    rows += "," + std::to_string(i * i % 3) + ",g" + std::to_string(i * i % 50 / 4) + "\n";
  }
  const auto path = folder.write("a.csv", rows);
  for (const char* kind : {"kind = 'ranking'; group = 'search'", "kind = 'classification'", "kind = 'regression'"}) {
    CAPTURE(kind);
    const LoadedTask task("text", options_of(path, small + kind + "; validation_share = 0; order = 'sequential'; " +
                                                       "batch_size = 1; length = 64"));
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    std::vector<vernier::Batch> batches;
    double sum = 0;
    bool differ = false;
    for (int i = 0; i < 6; ++i) {
      batches.push_back(task->next());
      sum += task->loss(batches.back()).item<double>();
      differ = differ || batches[0].tensors[0].sizes() != batches.back().tensors[0].sizes();
    }
    CHECK(differ);
    const auto whole = task->concatenated(batches);
    CHECK(whole.samples == 6);
    CHECK(task->loss(whole).item<double>() == doctest::Approx(sum / 6).epsilon(1e-5));
  }
}

TEST_CASE("text learns its tokenizer of the training texts alone") {
  const TemporaryFolder folder;
  std::string rows = "text,label\n";
  for (int i = 0; i < 40; ++i) rows += i < 30 ? "seen seen words,a\nother old words,b\n" : "unseen unseen,a\n";
  const auto path = folder.write("a.csv", rows);
  const LoadedTask task("text", options_of(path, small + "split = 'last'; validation_share = 0.14"));
  const auto bytes = supervised(task).learned().tensor("tokenizer/tokenizer.json");
  const std::string json(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
  const auto vocabulary = nlohmann::json::parse(json).at("model").at("vocab");
  CHECK(vocabulary.contains("seen"));
  CHECK(vocabulary.contains("Ġwords"));
  CHECK_FALSE(vocabulary.contains("unseen"));
  const auto all = predicted(task, folder.write("new.csv", "text\nunseen words\n\"\"\"quoted\"\", größer\"\n"));
  CHECK(all.at(0).name == "label");
  CHECK(all.at(0).labels == std::vector<std::string>{"a", "b"});
  CHECK(has_shape(all.at(0).numbers, {2}));
}

TEST_CASE("text reads the same of CSV and of JSON Lines, in float64") {
  const TemporaryFolder folder;
  std::string csv = "text,label\n", lines;
  for (int i = 0; i < 20; ++i) {
    const auto text = "offer " + std::to_string(i * i % 7), number = std::to_string(1700000000 + i) + ".25";
    csv += text + "," + number + "\n";
    lines += R"({"label": )" + number + R"(, "text": ")" + text + "\"}\n";
  }
  const LoadedTask one("text", options_of(folder.write("a.csv", csv), small));
  const LoadedTask other("text", options_of(folder.write("a.jsonl", lines), small));
  const auto a = one->next(), b = other->next();
  CHECK(a.tensors.at(0).equal(b.tensors.at(0)));
  CHECK(a.tensors.at(1).equal(b.tensors.at(1)));
  CHECK(a.tensors[1].sub(1.7e9).remainder(1).eq(0.25).all().item<bool>());
  CHECK(one->where(0) == "'" + (folder / "a.csv") + "' line 2");
  CHECK(other->where(0) == "'" + (folder / "a.jsonl") + "' line 1");
}

TEST_CASE("text: with recompute the gradients are the same") {
  std::vector<torch::Tensor> gradients;
  for (const char* recompute : {"none", "full", "selective"}) {
    const auto task =
        made("adverts.csv", std::string("width = 16; heads = 2; dropout = 0.2; recompute = '") + recompute + "'");
    task->loss(task->next()).backward();
    std::vector<torch::Tensor> all;
    for (const auto& parameter : task.run.parameters) all.push_back(parameter.model.grad().flatten());
    gradients.push_back(torch::cat(all));
    CHECK(gradients.back().allclose(gradients.front(), 1e-5, 1e-7));
  }
}

TEST_CASE("a trained model of text is whole without its data and its tokenizer's folder") {
  const auto loaded = made("adverts.csv", small);
  auto options = options_of("nowhere.csv", small + "tokenizer = 'nowhere'");
  auto task = make_plugin<vernier::Task>("task/text", options);
  auto& trained = dynamic_cast<SupervisedTask&>(*task);
  trained.use_learned(supervised(loaded).learned(), /*reads_data=*/false);
  vernier::TrainerRun run;
  task->prepare(run);
  vernier::load_state_dict(*run.model, vernier::state_dict(*loaded.run.model));
  run.model->eval();
  auto& model = dynamic_cast<vernier::Predictor&>(*task);
  const torch::NoGradGuard no_grad;
  const auto columns = model.predict(trained.loader_of(model.read_inputs(texts + "adverts.csv")).next());
  CHECK(columns.at(1).numbers.equal(predicted(loaded, texts + "adverts.csv").at(1).numbers));
  CHECK(trained.forward(trained.example(3)).isfinite().all().item<bool>());
  const auto description = nlohmann::json::parse(model.description());
  CHECK(description.at("classes") == nlohmann::json{"fine", "misleading"});
  CHECK(model.classes() == std::vector<std::string>{"fine", "misleading"});
  const auto other = [&](const std::string& more) {
    auto changed = make_plugin<vernier::Task>("task/text", options_of(texts + "adverts.csv", small + more));
    dynamic_cast<SupervisedTask&>(*changed).use_learned(supervised(loaded).learned(), /*reads_data=*/true);
    vernier::TrainerRun again;
    return refusal([&] { changed->prepare(again); });
  };
  CHECK(other("") == "");
  CHECK(says(other("target = 'clicks'"), "the trained model predicts 'label'"));
  CHECK(says(other("kind = 'regression'"), "the trained model is of a classification"));
}

TEST_CASE("text: a trained model is evaluated on what its training held out, or on the file that is named") {
  const TemporaryFolder folder;
  const auto lines = read_text(texts + "adverts.csv");
  const auto write = [&](const std::string& name, std::size_t size) {
    return folder.write(name, lines.substr(0, lines.find('\n', size) + 1));
  };
  write("data.csv", lines.size() - 1);
  const auto held = write("held.csv", 600), test = write("test.csv", 800), other = write("other.csv", 1000);
  const auto held_out = [&](const LoadedTask& trained, const std::string& data, const std::string& more) {
    const auto task = make_plugin<vernier::Task>("task/text", options_of(data, small + more));
    dynamic_cast<SupervisedTask&>(*task).use_learned(supervised(trained).learned(), /*reads_data=*/true);
    vernier::TrainerRun run;
    run.seed = trained.run.seed;
    task->prepare(run);
    return task->save().text("held_out");
  };
  const auto drawn = LoadedTask("text", options_of(folder / "data.csv", small));
  CHECK(held_out(drawn, folder / "data.csv", "") == drawn->save().text("held_out"));
  const auto refused = [&](const std::string& more) {
    const auto text = refusal([&] { held_out(drawn, folder / "data.csv", more); });
    CHECK_MESSAGE((text.empty() || says(text, "name other data, as in --set task.validation=FILE")), text);
    return !text.empty();
  };
  CHECK(refused("validation_share = 0.5"));
  CHECK(refused("split = 'last'"));
  CHECK(!refused("split = 'last'; validation = '" + test + "'"));
  CHECK(!refused("validation = '" + test + "'"));
  const std::string with = "validation = '";
  const auto trained = LoadedTask("text", options_of(folder / "data.csv", small + with + held + "'"));
  const auto of_test = held_out(trained, folder / "data.csv", with + test + "'"),
             of_other = held_out(trained, other, with + held + "'");
  CHECK(says(of_test, std::to_string(std::ranges::count(read_text(test), '\n') - 1) + " texts"));
  CHECK(says(of_other, std::to_string(std::ranges::count(read_text(other), '\n') - 1) + " texts"));
  write("data.csv", 1500);  // the training file changes
  CHECK(held_out(trained, folder / "data.csv", with + test + "'") == of_test);
  CHECK(held_out(trained, folder / "data.csv", with + held + "'") == trained->save().text("held_out"));
  CHECK(held_out(trained, other, with + held + "'") == of_other);
  CHECK(refused("batch_size = 8"));
}

TEST_CASE("text: TorchScript and Python compute what the network does") {
  const bool has_torch = has_python("torch, safetensors, tokenizers");
  for (const bool is_regression : {false, true}) {
    const TemporaryFolder folder;
    const std::string file = is_regression ? "snippets.jsonl" : "adverts.csv";
    const auto task = made(file, small + (is_regression ? clicks : ""));
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    vernier::save_torchscript(folder / "model.pt", *task.run.model, supervised(task), torch::kCPU);  // compares
    if (!has_torch) continue;
    folder.write("model.py", predictor(task).python_model());
    CHECK(says(predictor(task).python_model(), "self.tokenizer.no_truncation()"));
    vernier::save_safetensors(folder / "model.safetensors", vernier::state_dict(*task.run.model).tensors);
    const auto columns = predicted(task, texts + file);
    vernier::save_safetensors(folder / "columns.safetensors", {{"first", columns.at(0).numbers.to(torch::kFloat64)}});
    std::string out;
    CHECK_MESSAGE(python("'" + texts + "model_texts.py' '" + texts + file + "'", folder.path(), out) == 0, out);
    CHECK(out == "");
  }
}

}  // namespace text_test
