// The trainer against `BpeTrainer` of the package tokenizers: tests/oracles/bpe.py.
#include <doctest/doctest.h>
#include <vernier/text/bpe_trainer.h>

#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "thrown.h"

namespace bpe_trainer_test {

using Json = nlohmann::json;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

std::vector<std::pair<std::string, std::string>> merges_of(const vernier::TrainedBpe& trained) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& [left, right] : trained.merges) {
    merges.emplace_back(trained.tokens[static_cast<std::size_t>(left)],
                        trained.tokens[static_cast<std::size_t>(right)]);
  }
  return merges;
}

}  // namespace

TEST_CASE("bpe trainer: ties and pairs over each other are merged as the package does") {
  const auto cases = Json::parse(read_text(oracles + "training.json"));
  REQUIRE(cases.size() >= 50);
  for (const auto& each : cases) {
    vernier::PieceCounts counts;
    for (const auto& text : each["texts"]) counts.add(text.get<std::string>());
    vernier::BpeTraining training;
    training.vocabulary = each["vocabulary"];
    training.min_count = each["min_count"];
    training.special = {"<|endoftext|>"};
    const auto trained = vernier::train_bpe(counts, training);
    CAPTURE(each.dump());
    CHECK(merges_of(trained) == each["merges"].get<std::vector<std::pair<std::string, std::string>>>());
  }
}

TEST_CASE("bpe trainer: pieces of parts add up to those of the whole") {
  const auto text = read_text(oracles + "corpus.txt");
  vernier::PieceCounts whole, parts;
  whole.add(text);
  for (std::string_view rest = text; !rest.empty();) {
    const auto some = rest.substr(0, 500);
    const auto cut = vernier::last_piece_cut(some.substr(0, some.find_last_of(' ')));
    const auto size = some.size() < 500 || cut == 0 ? rest.size() : cut;
    vernier::PieceCounts counts;
    counts.add(rest.substr(0, size));
    parts.add(std::move(counts));
    rest.remove_prefix(size);
  }
  CHECK(whole.counts().size() > 50);
  CHECK(whole.counts() == parts.counts());
}

TEST_CASE("bpe trainer: a vocabulary must have room for the bytes") {
  vernier::BpeTraining training;
  training.vocabulary = 255;
  const auto thrown = thrown_by([&] { vernier::train_bpe({}, training); });
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "a vocabulary of 255 cannot be trained"));
}

TEST_CASE("bpe trainer: a folder that has a tokenizer is not written over") {
  const TemporaryFolder folder;
  const auto path = folder.write("vocab.json", "{}");
  const auto thrown = thrown_by([&] { vernier::save_bpe(folder.path(), {}, {}); });
  CHECK(thrown == configuration("'" + path + "' is there already; name another folder"));
  CHECK(read_text(path) == "{}");
}

}  // namespace bpe_trainer_test
