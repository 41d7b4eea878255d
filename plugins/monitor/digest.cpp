// digest: writes checksums of the loss, and of each parameter's gradient and weight, so that two runs can be compared
// bit for bit long after they ended. `vernier replay RUN --against OTHER` reads them.
//   every = 10               steps between lines; the last planned step always has one
//   file = "digests.jsonl"   in the run's output folder
// A line: {"step":10,"loss":"2.5 (0x40200000)","gradients":{"wte.weight":"<XXH3-128>"},"weights":{"wte.weight":…}}.
// Gradients are those that the optimizer gets; weights are those after the update. A resumed run keeps the lines up to
// its checkpoint. After a rewind in memory, the steps that come again have a second line. A line costs one pass over
// the gradients and the weights, and on a GPU their copy to the host.
#include <vernier/append_file.h>
#include <vernier/capsule.h>
#include <vernier/json_text.h>
#include <vernier/sdk.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

namespace {

using vernier::Event;
using vernier::Run;

class Digest final : public vernier::Monitor {
 public:
  explicit Digest(vernier::Options& options)
      : every_(options.get("every", 10, "steps between lines", vernier::at_least(1))),
        name_(options.get("file", "digests.jsonl", "name in the run's output folder")) {
    if (name_.empty()) options.refuse("file", "must be the name of a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { open(run); });
    bus.on(Event::GradientsReady, [this](const Run& run) {
      if (is_due(run, run.step + 1)) seen_ = vernier::fingerprint(run);
    });
    bus.on(Event::StepEnd, [this](const Run& run) {
      if (is_due(run, run.step)) write(run);
    });
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("lines", lines_);
    return state;
  }
  // Before RunBegin this resumes a run. Later it rewinds one: the written lines stay, and the steps run again.
  void load(const vernier::State& state) override {
    if (!file_ && state.has("lines")) lines_ = state.integer("lines");
  }

  bool set_every(std::int64_t steps) override {
    every_ = steps;
    return true;
  }

 private:
  bool is_due(const Run& run, std::int64_t step) const { return step % every_ == 0 || step == run.steps; }

  void open(const Run& run) {
    const auto path = std::filesystem::path(run.output) / name_;
    lines_ = vernier::keep_lines_of_run(path, run.step, lines_);
    file_ = std::make_unique<vernier::AppendFile>(path, "lines", [this](const std::string& text) { warn(text); });
  }

  void write(const Run& run) {
    const nlohmann::ordered_json line = {{"step", run.step},
                                         {"loss", seen_.loss},
                                         {"gradients", seen_.gradients},
                                         {"weights", vernier::digests_of_weights(run)}};
    if (file_->append(vernier::json_text(line) + '\n')) lines_ += 1;
    file_->flush();
  }

  std::int64_t every_;
  std::string name_;
  std::unique_ptr<vernier::AppendFile> file_;
  std::int64_t lines_ = -1;    // lines of the file; before RunBegin those of the resumed run, -1 for a new run
  vernier::Fingerprint seen_;  // from GradientsReady to StepEnd
};

}  // namespace

VERNIER_PLUGIN(Digest, "digest", "1.0.0")
