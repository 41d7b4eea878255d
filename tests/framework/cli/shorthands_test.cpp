#include "common/config/shorthands.h"

#include <doctest/doctest.h>

#include "thrown.h"

namespace shorthands_test {

namespace po = boost::program_options;
using Words = std::vector<std::string>;

namespace {

po::variables_map parsed(const Words& words) {
  po::options_description known;
  vernier::add_shorthands(known);
  po::variables_map given;
  po::store(po::command_line_parser(words).options(known).run(), given);
  return given;
}

Words sets_of(const Words& words, const Words& sets = {}, bool has_scaler = false) {
  return vernier::sets_of_shorthands(parsed(words), sets, has_scaler);
}

Thrown refusal(const Words& words, const Words& sets = {}) {
  return thrown_by([&] { sets_of(words, sets); });
}

}  // namespace

TEST_CASE("shorthands: each is a --set") {
  CHECK(sets_of({}) == Words{});
  CHECK(sets_of({"--mixed-precision", "no"}) == Words{"precision.use=fp32"});
  CHECK(sets_of({"--mixed-precision", "bf16"}) == Words{"precision.use=bf16"});
  CHECK(sets_of({"--mixed-precision=fp8"}) == Words{"precision.use=fp8"});
  CHECK(sets_of({"--amp-opt-level", "O2"}) == Words{"precision.level=O2"});
  CHECK(sets_of({"--grad-scaler-init", "1024"}, {}, true) == Words{"scaler.init_scale=1024"});
  CHECK(sets_of({"--grad-scaler-growth-interval", "100"}, {}, true) == Words{"scaler.growth_interval=100"});
  CHECK(sets_of({"--grad-scaler-backoff", "0.25"}, {"scaler.use=dynamic"}) == Words{"scaler.backoff_factor=0.25"});
  CHECK(sets_of({"--grad-accum-steps", "4"}) ==
        Words{"accumulation.gradient_accumulation_steps=4", "accumulation.use=target"});
  CHECK(sets_of({"--batch-size", "32", "--epochs", "2"}) == Words{"task.batch_size=32", "run.epochs=2", "run.steps=0"});
}

TEST_CASE("shorthands: float16 brings a scaler where there is none") {
  CHECK(sets_of({"--mixed-precision", "fp16"}) == Words{"precision.use=fp16", "scaler.use=dynamic"});
  CHECK(sets_of({"--mixed-precision", "fp16"}, {}, true) == Words{"precision.use=fp16"});
  CHECK(sets_of({"--mixed-precision", "fp16"}, {"scaler.use=static"}) == Words{"precision.use=fp16"});
}

TEST_CASE("shorthands: an option of a scaler without a scaler is refused with both ways out") {
  for (const std::string flag : {"--grad-scaler-init", "--grad-scaler-growth-interval", "--grad-scaler-backoff"}) {
    const auto said = refusal({flag, "0.5"});
    CHECK(said == configuration(flag + " is for a loss scaler, and this run has none; add --mixed-precision fp16, or " +
                                "for another precision --set scaler.use=dynamic"));
    CHECK(refusal({flag, "0.5", "--mixed-precision", "bf16"}) == said);
    CHECK(refusal({flag, "0.5", "--mixed-precision", "fp16"}) == Thrown{});
    CHECK(refusal({flag, "0.5"}, {"scaler.use=dynamic"}) == Thrown{});
    CHECK(refusal({flag, "0.5"}, {"scaler={use=\"dynamic\"}"}) == Thrown{});
  }
}

TEST_CASE("shorthands: what says the same as a --set, or is not a word, is refused") {
  CHECK(refusal({"--batch-size", "8"}, {"task.batch_size = 4"}) ==
        configuration("--batch-size and --set task.batch_size say the same; give one of them"));
  CHECK(refusal({"--mixed-precision", "no"}, {"run.steps=3", "precision.use=bf16"}) ==
        configuration("--mixed-precision and --set precision.use say the same; give one of them"));
  CHECK(refusal({"--epochs", "3"}, {"run.steps=9"}) ==
        configuration("--epochs and --set run.steps say the same; give one of them"));
  CHECK(refusal({"--batch-size", "8"}, {"run.steps=9"}) == Thrown{});
  CHECK(refusal({"--mixed-precision", "bf61"}) ==
        configuration("--mixed-precision bf61: did you mean bf16? It takes no, fp16, bf16, fp8"));
  for (const std::string flag : {"--batch-size", "--epochs", "--grad-accum-steps"}) {
    CHECK(refusal({flag, "0"}) == configuration(flag + " 0: it must be more than 0"));
  }
  CHECK(refusal({"--amp-opt-level", "high"}) == configuration("--amp-opt-level high: it takes O0, O1, O2, O3"));
  CHECK(refusal({"--grad-accum-steps", "2"}, {"accumulation.use=fit"}) ==
        configuration("--grad-accum-steps and --set accumulation.use say the same; give one of them"));
  CHECK(refusal({"--grad-ckpt"}, {"task.recompute=none"}) ==
        configuration("--grad-ckpt and --set task.recompute say the same; give one of them"));
}

TEST_CASE("shorthands: a flag of another trainer gets a hint") {
  po::options_description known;
  vernier::add_shorthands(known);
  known.add_options()("resume", "")("precision", "")("set", "")("debug", "");
  const auto hint = [&](const std::string& flag) { return vernier::hint_for_flag(flag, known); };
  CHECK(hint("--bs") == "; did you mean --batch-size?");
  CHECK(hint("--per_device_train_batch_size") == "; did you mean --batch-size?");
  CHECK(hint("--gradient-accumulation-steps") == "; did you mean --grad-accum-steps?");
  CHECK(hint("--amp") == "; did you mean --mixed-precision, which takes no, fp16, bf16, fp8?");
  CHECK(hint("--enable_amp") == "; did you mean --mixed-precision, which takes no, fp16, bf16, fp8?");
  CHECK(hint("--amp_growth_interval") == "; did you mean --grad-scaler-growth-interval?");
  CHECK(hint("--max_grad_norm") == "; write --set callback.clip_norm.max_norm=VALUE");
  CHECK(hint("--max_loss_scale") == "; `[scaler] use = \"dynamic\", max_scale = 16777216` does it");
  CHECK(hint("--bf16") == "; did you mean --mixed-precision bf16?");
  CHECK(hint("--float16") == "; did you mean --mixed-precision fp16?");
  CHECK(hint("--resume-from-checkpoint") == "; did you mean --resume?");
  CHECK(hint("--verbose") == "; did you mean --debug?");
  CHECK(hint("--lr") == "; write --set optimizer.learning_rate=VALUE");
  CHECK(hint("--max-steps") == "; write --set run.steps=VALUE");
  CHECK(hint("--seed") == "; write --set run.seed=VALUE");
  CHECK(hint("--output-dir") == "; write --set run.output=VALUE");
  CHECK(hint("--epohcs") == "; did you mean --epochs?");
  CHECK(hint("--log_frequency") == "; `[[monitor]] use = \"progress\", every = 50` says how often it logs");
  CHECK(says(hint("--data-parallel"), "`vernier launch -n 2 FILE` starts a process for each GPU"));
  CHECK(hint("--fast").empty());
  CHECK(hint("--").empty());
  CHECK(refusal({"--mixed-precision", "float16"}) ==
        configuration("--mixed-precision float16: did you mean fp16? It takes no, fp16, bf16, fp8"));
  CHECK(says(refusal({"--mixed-precision", "bf16-mixed"}).text, "did you mean bf16?"));
  CHECK(says(refusal({"--mixed-precision", "fp32"}).text, "did you mean no?"));
}

TEST_CASE("shorthands: they are repeated as they were given") {
  const auto given = parsed({"--epochs", "3", "--mixed-precision", "fp16"});
  CHECK(vernier::shorthands_given(given) == Words{"--mixed-precision", "fp16", "--epochs", "3"});
  CHECK(vernier::shorthands_given(given, {"run.epochs"}) == Words{"--mixed-precision", "fp16"});
  CHECK(vernier::shorthands_given(given, {"precision"}) == Words{"--epochs", "3"});
  CHECK(sets_of({"--grad-ckpt", "--epochs", "2"}) == Words{"task.recompute=full", "run.epochs=2", "run.steps=0"});
  CHECK(vernier::shorthands_given(parsed({"--grad-ckpt", "--epochs", "2"})) == Words{"--grad-ckpt", "--epochs", "2"});
}

}  // namespace shorthands_test
