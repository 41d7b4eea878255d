// my_name: writes a checkpoint every so many steps, and keeps them all.
// They are <run.output>/checkpoints/step-00000100, where Checkpoint::snapshots finds them. Override it for other names.
//   every = 100   steps between two checkpoints; the runner adds one at the end of the run
//
// This file is a complete plugin. Replace its rule with your own.
#include <vernier/checkpoint_folder.h>
#include <vernier/sdk.h>

#include <filesystem>

class MyName final : public vernier::Checkpoint {
 public:
  // Reads the options and does nothing else. `vernier plugins checkpoint/my_name` prints what is read here.
  explicit MyName(vernier::Options& options)
      : every_(options.get("every", 100, "steps between two checkpoints", vernier::at_least(1))) {}

  // Called after each step.
  bool due(const vernier::Run& run) override { return run.step % every_ == 0; }

  // Called when due() is true, and at the end of the run, also if a signal or an error ends it. On return the
  // checkpoint is on the disk. It is complete or absent, whatever stops the writer.
  void write(const vernier::State& snapshot, vernier::Run& run) override {
    vernier::State rest;
    for (const auto& [name, tensor] : snapshot.tensors) {
      if (!name.starts_with("model/")) rest.put(name, tensor);
    }
    const auto folder = folder_in(run.output);
    std::filesystem::create_directories(folder);
    const auto path = folder + "/" + vernier::checkpoint_name(run.step);
    vernier::write_checkpoint(path, {.step = run.step, .run = run.name}, snapshot.part("model"), rest);
    run.notice("checkpoint_saved", {{"path", path}}, "saved " + path);
  }

  // Called when the run is resumed. `from` is what follows --resume=, a run or a checkpoint; empty: this run.
  std::optional<vernier::State> read(const vernier::Run& run, const std::string& from) override {
    auto path = from;
    if (!vernier::is_checkpoint(from)) {
      const auto found = vernier::checkpoints_in(folder_in(from.empty() ? run.output : from));
      if (found.empty()) return std::nullopt;
      path = found.front();  // the newest
    }
    auto saved = vernier::read_checkpoint(path);
    saved.state.put("model", saved.model);
    return saved.state;
  }

 private:
  static std::string folder_in(const std::string& run) { return run + "/checkpoints"; }

  std::int64_t every_;
};

VERNIER_PLUGIN(MyName, "my_name", "0.1.0")
