// gpt: trains GPT-2's network on any files, with one token per byte, and validates in bits per byte and by a sample.
// With `folder` it trains a published GPT-2 on tokens instead.
//
// folder = ""           the folder of a published model; its options are then those of task/llama, in language/task.h
// data                  required: files and folders; hidden and binary files in folders are left out (text.h). A single
//                       file of 64 MiB or more is mapped, and may not change during the run
// batch_size = 8        windows in an update
// context = 256         bytes in a window
// layers = 4, heads = 4, width = 256
// dropout = 0.0         after embeddings, attention and both halves of a block
// recompute = "none"    full: blocks keep only their input, and are computed again in backward (less memory, a third
//                       more work, the same bits). selective: they also keep the results of matrix products and
//                       attention, and compute only the cheap rest again
// recompute_every = 1   only every so many-th block does
// recompute_budget = "" recomputes only as many blocks as are needed to keep all activations of a micro-batch below it:
//                       "60MB", or "50%" of what they are otherwise. The first micro-batch is measured
//                       (vernier/recompute_budget.h)
// max_bytes = 4000000000  the most bytes of all files together; more are refused before they are read
// order = "shuffled"    of the windows in an epoch, or "sequential"
// validation = 0.1      share of the windows that is held out; 0: none
// validation_batches = 20  batches of at most 32 windows in a validation, spread over all that are held out; 0: all
// sample_bytes = 200    bytes that each validation writes into the log; 0: none
// sample_prompt = "The "  the text that the sample continues
// temperature = 0.8     of the sample; 0: always the likeliest byte
// top_k = 0             draws among the k likeliest bytes; 0: among all
//
// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; without `folder` without its
// tokenizer.
#include <ATen/ops/cross_entropy_loss.h>
#include <vernier/data/data_source.h>
#include <vernier/draft/capture.h>
#include <vernier/error.h>
#include <vernier/exported_model.h>
#include <vernier/memory_ledger.h>
#include <vernier/random_state.h>
#include <vernier/sdk.h>
#include <vernier/task_options.h>
#include <vernier/text/generation.h>

#include <algorithm>
#include <numbers>
#include <optional>

#include "../language/task.h"
#include "family.h"
#include "model.h"
#include "text.h"

namespace {

using vernier::Batch;
using vernier::between;
using vernier::Options;
using vernier::Run;

gpt::Shape read_shape(Options& options) {
  gpt::Shape shape;
  shape.layers = options.get("layers", shape.layers, "transformer blocks", between(1, 10000));
  shape.heads = options.get("heads", shape.heads, "attention heads of a block", between(1, 65536));
  shape.width = options.get("width", shape.width, "width of the residual stream", between(1, 65536));
  shape.context = options.get("context", shape.context, "bytes of a window", between(1, 1e7));
  shape.dropout = options.get("dropout", shape.dropout, "share of activations dropped", between(0, 0.99));
  shape.embedding_dropout = shape.attention_dropout = shape.dropout;
  const auto recompute = options.choose("recompute", "none", {"none", "full", "selective"},
                                        "full: blocks keep their input alone, and are computed once more in backward; "
                                        "selective: they keep what products and attention return, too");
  options.saves_memory(
      "recompute", "full",
      "activations are computed again in backward, with the same bits: a step takes about a third longer");
  const auto every = options.get("recompute_every", 1, "only every so many-th block does", between(1, 10000));
  if (recompute == "none" && options.given("recompute_every")) {
    options.refuse("recompute_every", "is for recompute = \"full\" or \"selective\"");
  }
  shape.recompute_every = recompute == "none" ? 0 : every;
  if (recompute == "selective") shape.keep = vernier::Keep::matmuls;
  if (shape.width % shape.heads != 0) {
    options.refuse("heads", c10::str(shape.heads, " heads do not divide a width of ", shape.width));
  }
  return shape;
}

std::string read_budget(Options& options, const gpt::Shape& shape) {
  constexpr const char* key = "recompute_budget";
  auto budget = options.get(key, "", "only as many blocks as keep a micro-batch's activations below it: 60MB, or 50%");
  if (!options.given(key)) return budget;
  if (shape.recompute_every == 0) options.refuse(key, "is for recompute = \"full\" or \"selective\"");
  if (options.given("recompute_every"))
    options.refuse(key, "and recompute_every both say which blocks; give one of them");
  try {
    constexpr std::int64_t any = 1'000'000'000;
    vernier::bytes_of(budget, any);
  } catch (const vernier::Error& error) {
    options.refuse(key, error.what());
  }
  return budget;
}

struct Sample {
  std::int64_t bytes = 200;  // 0: none
  std::string prompt = "The ";
  vernier::Sampling sampling{.temperature = 0.8};
};

Sample read_sample(Options& options) {
  Sample sample;
  auto& sampling = sample.sampling;
  sample.bytes =
      options.get("sample_bytes", sample.bytes, "bytes written by each validation; 0: none", between(0, 1e6));
  sample.prompt = options.get("sample_prompt", sample.prompt, "what the sample continues");
  sampling.temperature =
      options.get("temperature", sampling.temperature, "of the sample; 0: always the likeliest byte", between(0, 1000));
  sampling.top_k = options.get("top_k", sampling.top_k, "draw among the k likeliest bytes; 0: among all",
                               between(0, gpt::vocabulary));
  if (sample.prompt.empty())
    options.refuse("sample_prompt", "an empty text has nothing to continue; give a byte at least");
  return sample;
}

class Gpt final : public vernier::Task,
                  public vernier::LanguageModel,
                  public vernier::Exportable,
                  public vernier::draft::Capturable {
 public:
  explicit Gpt(Options& options)
      : paths_(options.require<std::vector<std::string>>("data", "files and folders of text")),
        max_bytes_(options.get("max_bytes", 4'000'000'000, "the most bytes of all files together; more are refused",
                               vernier::at_least(1))),
        batch_size_(options.get("batch_size", 8, "windows of an update", between(1, 1e9))),
        shape_(read_shape(options)),
        recompute_budget_(read_budget(options, shape_)),
        order_(vernier::read_order(options, "of the windows in an epoch")),
        validation_(options.get("validation", 0.1, "share of the windows held out; 0: none", between(0, 0.9))),
        validation_batches_(
            options.get("validation_batches", 20, "held-out batches of a validation; 0: all", between(0, 1e9))),
        sample_(read_sample(options)) {
    options.resumable("data");  // content counts, not path
    options.get(
        "folder", "",
        "of a published model, to train it on tokens: then the options of task/llama, and not those before, are read");
  }

  void attach(vernier::Bus& bus) override {
    if (recompute_budget_.empty()) return;
    bus.on(vernier::Event::StepBegin, [this](const Run& run) {
      if (!run.swapped.empty()) budgeted_->forget();  // another precision may need more memory or less
    });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus&) const override {
    const auto* accumulation = dynamic_cast<const vernier::Accumulation*>(&other);
    if (recompute_budget_.empty() || accumulation == nullptr || !accumulation->can_shrink()) return {};
    return {"recompute_budget",
            "is for micro-batches of one size, which " + other.id() + " looks for; leave one of them out"};
  }

  void use_trained(const vernier::State& saved, bool reads_data) override {
    trained_on_ = saved;
    reads_data_ = reads_data;
  }

  void prepare(Run& run) override {
    if (reads_data_) {
      read_data();
      sampler_.emplace(training_.count(), run.seed, order_);
    }
    network_ = std::make_shared<gpt::Network>(shape_, run.seed);
    run.set_model(network_);
    if (recompute_budget_.empty()) return;
    budgeted_.emplace(shape_.layers, shape_.keep, [this](const auto& bytes) { return choose_recomputed(bytes); });
    network_->set_budget(*budgeted_);
  }

  Batch next() override {
    if (!sampler_) vernier::refuse("a trained model was loaded without its data, and cannot be trained");
    return windows_.gather(training_.numbers(sampler_->next(batch_size_)));
  }

  std::string where(std::int64_t index) const override {
    return text_.where(index * shape_.context, shape_.context + 1);
  }

  std::int64_t batches_per_epoch() const override {
    return sampler_ ? (training_.count() + batch_size_ - 1) / batch_size_ : 1;
  }

  bool allows_capture() const override { return !budgeted_; }
  torch::Tensor loss(const Batch& micro_batch) override {
    const auto forward = [&] {
      const auto logits = network_->forward(micro_batch.tensors[0]);
      return at::cross_entropy_loss(logits.view({-1, gpt::vocabulary}), micro_batch.tensors[1].view(-1));
    };
    return budgeted_ ? budgeted_->forward(micro_batch.samples, micro_batch.tensors[0].device(), forward) : forward();
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{"bits_per_byte", vernier::Better::lower, "", "validation loss in bits for each byte of text", 0}};
  }
  std::optional<std::vector<vernier::MetricInfo>> measures() const override {
    if (looked_at_.numel() == 0) return std::vector<vernier::MetricInfo>();
    return std::vector<vernier::MetricInfo>{{"validation_loss", vernier::Better::lower}, metrics().front()};
  }

  std::string memory_remedy() const override { return "compute activations again ([task] recompute)"; }
  torch::Tensor validate(Run& run) override {
    if (sample_.bytes > 0) log_sample(run);
    if (looked_at_.numel() == 0) return {};
    auto mean = validation_loss(run);
    run.metrics.set("bits_per_byte", mean / std::numbers::ln2);
    return mean;
  }

  std::int64_t vocabulary() const override { return gpt::vocabulary; }
  std::int64_t longest() const override { return shape_.context; }
  std::string tokenizer_folder() const override { return ""; }
  bool reads_bytes() const override { return true; }
  torch::Tensor next_logits(const torch::Tensor& tokens, vernier::KeyValueCache* cache) override {
    return network_->next_logits({.tokens = tokens, .cache = cache});
  }

  vernier::ExportedModel exported_model() override {
    return {*network_,
            [this](const auto& inputs) { return network_->forward(inputs.at(0)); },
            {torch::zeros({2, shape_.context}, torch::kInt64)},
            {"tokens"}};
  }

  vernier::State save() const override {
    vernier::State state;
    if (sampler_) state.put("sampler", sampler_->state_dict());
    state.put("checksum", checksum_);
    state.put("", data_facts_);
    return state;
  }

  void load(const vernier::State& state) override {
    sampler_->load_state_dict(state.part("sampler"));
    if (state.text("checksum") == checksum_) return;
    const std::string difference = "the data have changed since this run was saved";
    if (state.has("allow_inexact")) return warn(difference, "; the run is resumed all the same");
    vernier::refuse(difference +
                    "; give the same files, give --allow-inexact to resume all the same, or start a new run");
  }

 private:
  std::int64_t choose_recomputed(const vernier::ForwardBytes& bytes) const {
    const auto all = vernier::peak_activations(bytes, 0);
    const auto budget = vernier::bytes_of(recompute_budget_, all);
    const auto count = vernier::blocks_to_recompute(bytes, budget);
    if (!count) {
      const auto most = bytes.recomputed < bytes.kept ? bytes.blocks - 1 : 0;
      vernier::refuse(c10::str("recompute_budget: activations of a micro-batch are ",
                               vernier::memory_text(vernier::peak_activations(bytes, most)), " at least, with ", most,
                               " of ", bytes.blocks, " blocks computed again, and the budget is ",
                               vernier::memory_text(budget),
                               ". Raise it, or train in more micro-batches ([accumulation] micro_batches)"));
    }
    info("computes ", *count, " of ", bytes.blocks,
         " blocks again in backward: ", vernier::memory_text(vernier::peak_activations(bytes, *count)),
         " of activations instead of ", vernier::memory_text(all), ", with a budget of ", vernier::memory_text(budget));
    return *count;
  }

  void read_data() {
    gpt::Text text;
    bool is_split = false;
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      text = gpt::read_text(files.names, max_bytes_);
      windows_ = gpt::Windows(text, shape_.context);
      training_ = held_out_ = gpt::Part(windows_.count(), 0, false);
      return std::vector{checksum_ = text.checksum};
    };
    const auto hold_out = [&]() -> vernier::DatasetPtr {
      training_ = gpt::Part(windows_.count(), validation_, false);
      held_out_ = gpt::Part(windows_.count(), validation_, true);
      is_split = true;
      if (validation_ == 0) return nullptr;
      return vernier::tensor_dataset({torch::tensor({validation_}, torch::kFloat64)});  // it decides which windows
    };
    const vernier::NamedData named = {{paths_, ""}, {}, "data", "", true};
    if (is_trained()) {
      named.read_again(trained_on_, read_all, hold_out);
    } else {
      const auto contents = read_all(named.training);
      data_facts_ = named.facts(contents, hold_out());
    }
    if (!is_split) warn("the model was not trained on these data, so all are held out");
    check_size(text.size);
    choose_looked_at();
    info(text.size, " bytes of ", text.files, " files (", text.skipped, " binary ones left out): ", training_.count(),
         " windows to train on, ", held_out_.count(), " held out");
    if (!text.binary.empty()) {
      warn("'", text.binary, "' has NUL bytes, so it is not a text in UTF-8; its bytes are learned as they are");
    }
    text.bytes.reset();
    text_ = std::move(text);
  }

  bool is_trained() const { return !trained_on_.tensors.empty(); }

  void check_size(std::int64_t bytes) const {
    const auto refuse = [bytes](const std::string& reason) {
      vernier::refuse(c10::str("data has ", bytes, " bytes; ", reason));
    };
    if (training_.count() < (is_trained() ? 1 : batch_size_)) {
      refuse(c10::str("one batch needs ", batch_size_, " windows of ", shape_.context, " bytes, and one byte more",
                      validation_ > 0 ? ", beside those held out for validation" : "",
                      ". Give more text, or a smaller batch_size or context"));
    }
    if (validation_ > 0 && held_out_.count() == 0) {
      refuse(c10::str("validation = ", validation_, " of ", windows_.count(),
                      " windows is not one. Give more text, a smaller context, or validation = 0"));
    }
  }

  // Every k-th of the held-out windows, the same ones in each validation.
  void choose_looked_at() {
    const auto cap = validation_batches_ == 0 ? held_out_.count() : validation_batches_ * validation_batch();
    const auto count = std::min(cap, held_out_.count());
    if (count > 0) looked_at_ = held_out_.numbers((torch::arange(count) * held_out_.count()).floor_divide(count));
  }

  // A whole batch may be too large for the memory.
  std::int64_t validation_batch() const { return std::min<std::int64_t>(batch_size_, 32); }

  torch::Tensor validation_loss(const Run& run) {
    auto sum = torch::zeros({}, torch::TensorOptions(run.device).dtype(torch::kFloat32));
    for (const auto& numbers : looked_at_.split(validation_batch())) {
      if (run.is_stopping()) break;
      const auto batch = windows_.gather(numbers).to(run.device);
      sum += loss(batch).to(torch::kFloat32) * batch.samples;
    }
    return sum / looked_at_.numel();
  }

  void log_sample(const Run& run) {
    // It has its own generator, so the same run writes the same sample, and the run's random numbers stay as they are.
    const auto generator = vernier::own_generator(run.seed + static_cast<std::uint64_t>(run.step));
    vernier::GenerationOptions options;
    options.sampling = sample_.sampling;
    options.max_tokens = sample_.bytes;
    options.slides = true;
    auto text = sample_.prompt;
    const std::vector<vernier::TokenId> prompt(reinterpret_cast<const unsigned char*>(text.data()),
                                               reinterpret_cast<const unsigned char*>(text.data()) + text.size());
    const auto end = vernier::generate(*this, prompt, options, run.device, generator, [&](vernier::TokenId byte) {
      text.push_back(static_cast<char>(byte));
      return true;
    });
    if (end == vernier::GenerationEnd::not_finite) text += "… (the model gives no finite probabilities)";
    info("sample after step ", run.step, ":\n", vernier::printable(text, "\n\t"));
  }

  std::vector<std::string> paths_;
  std::int64_t max_bytes_, batch_size_;
  gpt::Shape shape_;
  std::string recompute_budget_;
  vernier::Sampler::Order order_;
  double validation_;
  std::int64_t validation_batches_;
  Sample sample_;

  std::string checksum_;       // checksum of the text
  vernier::State trained_on_;  // state of a trained model; empty: a new one
  vernier::State data_facts_;  // facts of NamedData
  bool reads_data_ = true;
  gpt::Text text_;  // without its bytes, which windows_ has
  gpt::Windows windows_;
  gpt::Part training_, held_out_;
  torch::Tensor looked_at_ = torch::empty({0}, torch::kInt64);  // numbers of windows
  std::optional<vernier::Sampler> sampler_;
  std::shared_ptr<gpt::Network> network_;
  std::optional<vernier::BudgetedBlocks> budgeted_;
};

vernier::Plugin* create(Options& options) {
  if (options.given("folder")) return new language::PublishedTask(options, gpt::family());
  auto bytes = std::make_unique<Gpt>(options);
  // Options that are only described: those with a folder come behind the others.
  if (!options.given("data")) language::PublishedTask(options, gpt::family());
  return bytes.release();
}

}  // namespace

extern "C" VERNIER_API constinit const vernier::Descriptor vernier_plugin =
    vernier::describe(vernier::Task::role, "gpt", "1.0.0", create);
