#include <ATen/ops/_fused_adamw.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <map>
#include <set>

#include "loaded_task.h"
#include "small_gpt.h"
#include "temporary_folder.h"

namespace gpt_test {

using vernier::Batch;
using vernier::Table;

namespace {

constexpr std::int64_t context = 4;

// A text of so many windows in which every window shows its number.
std::string numbered(std::int64_t windows) {
  std::string text;
  for (std::int64_t i = 0; i < windows; ++i) {
    text += {static_cast<char>(i >> 8), static_cast<char>(i & 255), 'x', 'y'};
  }
  return text + static_cast<char>(windows >> 8);
}

std::int64_t number_of(const torch::Tensor& window) {
  return window[0].item<std::int64_t>() * 256 + window[1].item<std::int64_t>();
}

Batch window(std::int64_t number) {
  const std::int64_t bytes[] = {number >> 8, number & 255, 'x', 'y', (number + 1) >> 8};
  const auto all = torch::tensor(at::ArrayRef<std::int64_t>(bytes, 5)).unsqueeze(0);
  return {{all.narrow(1, 0, context).contiguous(), all.narrow(1, 1, context).contiguous()}, 1, context};
}

std::vector<std::int64_t> one_epoch(const LoadedTask& gpt) {
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i < gpt->batches_per_epoch(); ++i) {
    const Batch batch = gpt->next();
    CHECK(batch.samples == batch.tensors[0].size(0));
    CHECK(batch.tokens == batch.samples * context);
    for (std::int64_t row = 0; row < batch.samples; ++row) seen.push_back(number_of(batch.tensors[0][row]));
  }
  return seen;
}

}  // namespace

TEST_CASE("gpt: parameters have GPT-2's names and shapes") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100))));
  std::map<std::string, std::vector<std::int64_t>> expected = {
      {"wte.weight", {256, 8}}, {"wpe.weight", {4, 8}}, {"ln_f.weight", {8}}, {"ln_f.bias", {8}}};
  for (const std::string h : {"h.0.", "h.1."}) {
    for (const std::string norm : {"ln_1", "ln_2"}) expected[h + norm + ".weight"] = expected[h + norm + ".bias"] = {8};
    const auto linear = [&](const std::string& name, std::int64_t inputs, std::int64_t outputs) {
      expected[h + name + ".weight"] = {inputs, outputs};
      expected[h + name + ".bias"] = {outputs};
    };
    linear("attn.c_attn", 8, 24);
    linear("attn.c_proj", 8, 8);
    linear("mlp.c_fc", 8, 32);
    linear("mlp.c_proj", 32, 8);
  }
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const auto& parameter : gpt.run.parameters) found[parameter.name] = parameter.model.sizes().vec();
  CHECK(found == expected);
  CHECK(gpt.run.model->named_buffers().is_empty());
}

TEST_CASE("gpt: starts as GPT-2 does, from the seed alone") {
  const TemporaryFolder folder;
  const auto table =
      small(folder.write("a.txt", lorem(5000)), {{"width", value(64)}, {"layers", value(8)}, {"context", value(64)}});
  const LoadedTask gpt("gpt", table, 7);
  torch::rand({3});  // the global random state has no say
  const LoadedTask same("gpt", table, 7), other("gpt", table, 8);
  for (const auto& [name, weight, master, frozen, owned] : gpt.run.parameters) {
    CAPTURE(name);
    CHECK(torch::equal(weight, same.parameter(name)));
    if (weight.dim() == 1) {
      CHECK(torch::all(weight == (name.ends_with("weight") ? 1 : 0)).item<bool>());
      continue;
    }
    const double expected = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(16.0) : 0.02;
    CHECK(weight.std().item<double>() == doctest::Approx(expected).epsilon(0.1));
    CHECK(std::abs(weight.mean().item<double>()) < expected * 0.1);
    CHECK_FALSE(torch::equal(weight, other.parameter(name)));
  }
  CHECK(gpt->loss(gpt->next()).item<double>() == doctest::Approx(std::log(256.0)).epsilon(0.01));
}

TEST_CASE("gpt: a byte is predicted from those before it only") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100))));
  const auto before = torch::randint(256, {2, context}), targets = torch::randint(256, {2, context});
  for (std::int64_t seen = 1; seen < context; ++seen) {
    auto only = targets.clone();
    only.narrow(1, seen, context - seen).fill_(-100);  // the index that cross entropy leaves out
    auto after = before.clone();
    after.narrow(1, seen, context - seen).add_(1).remainder_(256);
    CHECK(torch::equal(gpt->loss({{before, only}, 2, 0}), gpt->loss({{after, only}, 2, 0})));
    CHECK_FALSE(torch::equal(gpt->loss({{before, targets}, 2, 0}), gpt->loss({{after, targets}, 2, 0})));
  }
}

TEST_CASE("gpt: every parameter gets a gradient, and a shorter window reads the same positions") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100))));
  const Batch batch = gpt->next();
  gpt->loss(batch).backward();
  for (const auto& parameter : gpt.run.parameters) {
    CAPTURE(parameter.name);
    REQUIRE(parameter.model.grad().defined());
    CHECK(torch::isfinite(parameter.model.grad()).all().item<bool>());
    CHECK(parameter.model.grad().abs().sum().item<double>() > 0);
  }
  const Batch prefix = {{batch.tensors[0].narrow(1, 0, 2), batch.tensors[1].narrow(1, 0, 2).contiguous()}, 3, 6};
  auto only = batch.tensors[1].clone();
  only.narrow(1, 2, 2).fill_(-100);
  CHECK(gpt->loss(prefix).item<double>() ==
        doctest::Approx(gpt->loss({{batch.tensors[0], only}, 3, 0}).item<double>()).epsilon(1e-6));
}

TEST_CASE("gpt: dropout is drawn in training and not in evaluation") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100)), {{"dropout", value(0.5)}}));
  const Batch batch = gpt->next();
  CHECK_FALSE(torch::equal(gpt->loss(batch), gpt->loss(batch)));
  gpt.run.model->eval();
  CHECK(torch::equal(gpt->loss(batch), gpt->loss(batch)));
}

TEST_CASE("gpt: an epoch holds each window once, those held out never") {
  const TemporaryFolder folder;
  for (const std::int64_t windows : {5, 10, 37, 600}) {
    for (const double share : {0.0, 0.1, 0.25, 0.6}) {
      CAPTURE(windows);
      CAPTURE(share);
      LoadedTask gpt("gpt",
                     small(folder.write("a", numbered(windows)),
                           {{"validation", value(share)}, {"batch_size", value(1)}, {"validation_batches", value(0)}}));
      const auto seen = one_epoch(gpt);
      const std::set<std::int64_t> training(seen.begin(), seen.end());
      CHECK(training.size() == seen.size());
      CHECK(std::abs(static_cast<double>(windows - std::ssize(seen)) - share * static_cast<double>(windows)) <= 8);
      CHECK(one_epoch(gpt).size() == seen.size());

      // validate() sees the rest of the windows, so its loss is theirs.
      torch::NoGradGuard no_grad;
      double sum = 0;
      for (std::int64_t i = 0; i < windows; ++i) {
        if (!training.count(i)) sum += gpt->loss(window(i)).item<double>();
      }
      const auto held_out = windows - std::ssize(seen);
      CHECK(gpt.validate() ==
            doctest::Approx(held_out == 0 ? -1.0 : sum / static_cast<double>(held_out)).epsilon(1e-5));
      if (held_out > 0)
        CHECK(*gpt.run.metrics.value("bits_per_byte") == doctest::Approx(gpt.validate() / std::log(2.0)));
    }
  }
}

TEST_CASE("gpt: windows held out are spread over the text") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a", numbered(2000)), {{"validation", value(0.1)}}));
  const auto seen = one_epoch(gpt);
  std::vector<int> training_in(10);
  for (const auto number : seen) ++training_in[static_cast<std::size_t>(number / 200)];
  for (const int count : training_in) CHECK(std::abs(count - 180) <= 16);
}

TEST_CASE("gpt: the last batch of an epoch takes what is left") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a", numbered(8)), {{"order", value("sequential")}}));
  CHECK(gpt->batches_per_epoch() == 3);
  CHECK(one_epoch(gpt) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(gpt->next().samples == 3);
}

TEST_CASE("gpt: a seed gives one order of the data, and save and load go on in it") {
  const TemporaryFolder folder;
  const auto table = small(folder.write("a", numbered(50)));
  const LoadedTask first("gpt", table, 3), second("gpt", table, 3), other("gpt", table, 4);
  const auto order = one_epoch(first);
  CHECK(order == one_epoch(second));
  CHECK(order != one_epoch(other));
  for (int i = 0; i < 5; ++i) first->next();
  const LoadedTask resumed("gpt", table, 3);
  resumed->load(first->save());
  for (int i = 0; i < 40; ++i) CHECK(torch::equal(first->next().tensors[0], resumed->next().tensors[0]));
}

TEST_CASE("gpt: a large file is mapped, and gives the windows of the same bytes in memory") {
  const TemporaryFolder folder;
  constexpr std::size_t large = 64 << 20;
  std::string text = lorem(1 << 20);
  while (text.size() < large) text += text;
  text += "the end";
  const auto half = text.size() / 2 + 3;
  const Table more = {{"context", value(1 << 12)}, {"validation", value(0.1)}, {"validation_batches", value(1)}};
  const auto whole = folder.write("whole.txt", text);
  LoadedTask mapped("gpt", small(whole, more));
  auto two = small("", more);
  two["data"] =
      list<std::string>({folder.write("a.txt", text.substr(0, half)), folder.write("b.txt", text.substr(half))});
  LoadedTask read("gpt", two);
  CHECK(mapped->save().text("checksum") == vernier::checksum_of(text));
  CHECK(read->save().text("checksum") == vernier::checksum_of(text));
  CHECK(mapped->batches_per_epoch() == read->batches_per_epoch());
  for (int i = 0; i < 20; ++i) {
    const Batch first = mapped->next(), second = read->next();
    for (std::size_t part : {0, 1}) CHECK(torch::equal(first.tensors[part], second.tensors[part]));
    CHECK(first.indices == second.indices);
    CHECK(first.tokens == second.tokens);
  }
  CHECK(mapped->where(1) == "'" + whole + "' bytes 4096 to 8192");
  CHECK(mapped.validate() == read.validate());
  std::ofstream(whole, std::ios::app) << "!";
  CHECK(contains(refusal([&] { mapped->next(); }),
                 "whole.txt' has changed while it was read: it had 67108871 bytes and "));
}

TEST_CASE("gpt: a packed file, an archive or a table of another format is refused with the line that converts it") {
  const TemporaryFolder folder;
  const auto refused = [&](const char* name, const std::string& bytes) {
    return refusal([&] { LoadedTask("gpt", small(folder.write(name, bytes))); });
  };
  CHECK(contains(refused("a.txt.gz", "\x1f\x8b\x08 and more"),
                 "a.txt.gz' is packed by gzip, not a text; unpack it: gzip "));
  CHECK(contains(refused("a.txt", std::string("PAR1\x15\0 and more", 15)),
                 "a.txt' is a Parquet file, not a text; convert "));
}

TEST_CASE("gpt: a run is not resumed with other data") {
  const TemporaryFolder folder;
  const auto table = small(folder.write("a", numbered(50)));
  const auto saved = LoadedTask("gpt", table)->save();
  CHECK(refusal([&] { LoadedTask("gpt", table)->load(saved); }).empty());
  folder.write("a", std::string(201, 'z'));
  CHECK(contains(refusal([&] { LoadedTask("gpt", table)->load(saved); }), "the data have changed"));
  folder.write("a", numbered(51));
  CHECK(contains(refusal([&] { LoadedTask("gpt", table)->load(saved); }), "size 50, this run has 51"));
}

TEST_CASE("gpt: computes in the dtype of its weights") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100))));
  const Batch batch = gpt->next();
  const double exact = gpt->loss(batch).item<double>();
  gpt.run.model->to(torch::kBFloat16);
  const auto loss = gpt->loss(batch);
  loss.backward();
  CHECK((loss.scalar_type() == torch::kBFloat16));
  CHECK(loss.item<double>() == doctest::Approx(exact).epsilon(0.01));
}

TEST_CASE("gpt: folders are read in order, without hidden and binary files") {
  const TemporaryFolder folder;
  folder.write("b/two.txt", "two");
  folder.write("a/z/one.txt", "one");
  folder.write("c.cpp", "three");
  folder.write("bytes", "\xff\xfe");
  folder.write(".hidden", "no");
  folder.write(".git/config", "no");
  folder.write("image.bin", std::string("n\0o", 3));
  folder.write("empty", "");
  const auto end = folder.write("end/e", "END?");
  auto table =
      small(folder.path().string(), {{"context", value(1)}, {"batch_size", value(1)}, {"order", value("sequential")}});
  table["data"] = list<std::string>({folder.path().string(), end});
  CaughtLog log;
  const LoadedTask gpt("gpt", table);
  CHECK(contains(CaughtLog::text, "21 bytes of 7 files (1 binary ones left out): 20 windows"));
  std::string text;
  for (int i = 0; i < 20; ++i) text += static_cast<char>(gpt->next().tensors[0].item<std::int64_t>());
  CHECK(text == "onetwo\xff\xfethreeEND?END");
  const LoadedTask named("gpt", small(folder.write("named.bin", lorem(100) + std::string(1, '\0'))));
  CHECK(contains(CaughtLog::text, "named.bin' has NUL bytes, so it is not a text in UTF-8"));
}

TEST_CASE("gpt: more bytes than max_bytes are refused before they are read") {
  const TemporaryFolder folder;
  const auto refused = [](Table table) { return refusal([&] { const LoadedTask gpt("gpt", table); }); };
  const auto sparse = folder.write("data/sparse", "");
  std::filesystem::resize_file(sparse, std::uintmax_t{1} << 40);
  CHECK(contains(refused(small(sparse)), "data: '" + sparse +
                                             "' makes it 1099511627776 bytes, and max_bytes is 4000000000; give less "
                                             "text, or raise max_bytes if the memory has room for it"));
  folder.write("data/a", lorem(60));
  folder.write("data/b", lorem(60));
  const auto both = [&](int most) { return small(folder / "data", {{"max_bytes", value(most)}}); };
  CHECK(contains(refused(both(119)), "/data/b' makes it 120 bytes, and max_bytes is 119"));
  CHECK(refused(both(120)).empty());  // the sparse file has NUL bytes and is left out
}

TEST_CASE("gpt: refuses what cannot be trained, and says why") {
  const TemporaryFolder folder;
  const auto text = folder.write("a.txt", lorem(120));
  const auto refused = [&](Table table) { return refusal([&] { const LoadedTask gpt("gpt", table); }); };
  CHECK(contains(refused({}), "`data` is needed"));
  CHECK(contains(refused(small("no/such/file")), "data: 'no/such/file' does not exist"));
  CHECK(contains(refused(small("/dev/null")), "'/dev/null' is neither a file nor a folder"));
  CHECK(contains(refused(small("/proc/self/mem")), "'/proc/self/mem' cannot be read"));
  CHECK(contains(refused(small(folder.write("empty", ""))), "data has 0 bytes; one batch needs 3 windows of 4 bytes"));
  CHECK(
      contains(refused(small(text, {{"context", value(64)}})), "data has 120 bytes; one batch needs 3 windows of 64"));
  CHECK(contains(refused(small(folder.write("b", numbered(4)), {{"validation", value(0.01)}})),
                 "validation = 0.01 of 4 windows"));
  CHECK(contains(refused(small(text, {{"heads", value(3)}})), "test.toml:2: task/gpt: `heads` 3 heads do not divide"));
  for (const char* key : {"layers", "heads", "width", "context", "batch_size", "validation_batches", "sample_bytes"}) {
    CHECK(contains(refused(small(text, {{key, value(std::int64_t{9000000000000000000})}})),
                   "test.toml:2: task/gpt: `" + std::string(key) + "` must be "));
  }
  CHECK(contains(refused(small(text, {{"sample_prompt", value("")}})), "`sample_prompt`"));
  CHECK(contains(refused(small(text, {{"order", value("shufled")}})), "did you mean \"shuffled\""));
  CHECK(contains(refused(small(text, {{"layer", value(2)}})), "did you mean `layers`"));
  CHECK(refused(small(text)).empty());
}

TEST_CASE("gpt: writes a sample that is safe to print and disturbs no random number") {
  const TemporaryFolder folder;
  LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100)), {{"sample_bytes", value(500)}}));
  CaughtLog log;
  torch::manual_seed(5);
  gpt.validate();
  const auto after = torch::rand({4});
  torch::manual_seed(5);
  CHECK(torch::equal(after, torch::rand({4})));
  const std::string sample = CaughtLog::text;
  REQUIRE(contains(sample, "sample after step 0:\nThe "));
  CHECK(sample.size() > 500);  // an untrained network writes anything, most of it escaped
  CHECK(contains(sample, "\\x"));
  for (const char c : sample) CHECK((static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t'));

  CaughtLog::text.clear();
  gpt.validate();
  CHECK(CaughtLog::text == sample);
  CaughtLog::text.clear();
  gpt.run.step = 1;
  gpt.validate();
  CHECK(CaughtLog::text != sample);
}

TEST_CASE("gpt: a diverged network ends its sample, not the run") {
  const TemporaryFolder folder;
  for (const double temperature : {0.0, 0.8}) {
    for (const double broken : {std::nan(""), HUGE_VAL}) {
      LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100)), {{"sample_bytes", value(20)},
                                                                      {"validation", value(0.5)},
                                                                      {"batch_size", value(1)},
                                                                      {"temperature", value(temperature)}}));
      {
        const torch::NoGradGuard no_grad;
        gpt.parameter("ln_f.weight").fill_(broken);
      }
      CaughtLog log;
      CHECK_FALSE(std::isfinite(gpt.validate()));
      CHECK(contains(CaughtLog::text, "sample after step 0:\nThe … (the model gives no finite probabilities)\n"));
    }
  }
}

TEST_CASE("gpt: a temperature close to 0 writes the likeliest byte") {
  const TemporaryFolder folder;
  std::string samples[2];
  for (const double temperature : {0.0, 1e-300}) {
    LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100)),
                                {{"sample_bytes", value(40)}, {"temperature", value(temperature)}}));
    CaughtLog log;
    gpt.validate();
    samples[temperature > 0] = CaughtLog::text;
  }
  CHECK(samples[0] == samples[1]);
}

TEST_CASE("gpt: the data is recognised by the checksum of its bytes") {
  const TemporaryFolder folder;
  const LoadedTask gpt("gpt", small(folder.write("a", "foobar"), {{"context", value(1)}, {"batch_size", value(1)}}));
  CHECK(gpt->save().text("checksum") == vernier::checksum_of("foobar"));
}

TEST_CASE("gpt: the likeliest byte is written at temperature 0 and with top_k = 1") {
  const TemporaryFolder folder;
  const auto sample = [&](const Table& more) {
    auto table = small(folder.write("a.txt", lorem(100)), more);
    table["sample_bytes"] = value(40);
    LoadedTask gpt("gpt", table);
    CaughtLog log;
    gpt.validate();
    return CaughtLog::text;
  };
  CHECK(sample({{"temperature", value(0)}}) == sample({{"top_k", value(1)}, {"temperature", value(2.5)}}));
}

TEST_CASE("gpt: fifty steps have the losses that PyTorch has") {
  auto oracle = vernier::load_safetensors(VERNIER_SOURCE_DIR "/tests/oracles/gpt_curve.safetensors");
  const TemporaryFolder folder;
  const LoadedTask gpt(
      "gpt", small(folder.write("a.txt", lorem(200)),
                   {{"layers", value(3)}, {"heads", value(4)}, {"width", value(48)}, {"context", value(32)}}));
  std::vector<torch::Tensor> weights, first, second, steps;
  for (const auto& parameter : gpt.run.parameters) {
    torch::NoGradGuard no_grad;
    const auto& weight = weights.emplace_back(parameter.model);
    weight.copy_(oracle.at("start." + parameter.name));
    first.push_back(torch::zeros_like(weight));
    second.push_back(torch::zeros_like(weight));
    steps.push_back(torch::zeros({}));
  }
  const auto windows = oracle.at("text").unfold(0, 33, 1).to(torch::kInt64);
  const auto positions = oracle.at("positions"), losses = oracle.at("fp32.loss");
  for (std::int64_t step = 0; step < losses.size(0); ++step) {
    const auto rows = windows.index_select(0, positions[step]);
    const auto loss = gpt->loss({{rows.narrow(1, 0, 32).contiguous(), rows.narrow(1, 1, 32).contiguous()}, 4, 128});
    CAPTURE(step);
    CHECK(loss.item<double>() == doctest::Approx(losses[step].item<double>()).epsilon(1e-5));
    loss.backward();
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (const auto& weight : weights) gradients.push_back(weight.grad());
    for (auto& count : steps) count += 1;
    at::_fused_adamw_(weights, gradients, first, second, {}, steps, 1e-3, 0.9, 0.95, 0.1, 1e-8, false, false);
    for (auto& weight : weights) weight.mutable_grad().reset();
  }
}

}  // namespace gpt_test
