// The base of a task of your own: give it a model, data and a loss. Batching, the order of the data, worker threads,
// validation, metrics, saving, micro-batches and stopping come with it. docs/start/train-your-own.md shows whole
// examples.
//
//   void Digits::build(vernier::Run& run) {
//     const auto [training, held_out] = vernier::split(vernier::image_folder(path_).dataset, 0.1, run.seed);
//     set_training(training);
//     add_validation(held_out);
//     set_model(std::make_shared<Network>());
//     set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
//     add_metric(vernier::accuracy());
//   }
#pragma once

#include <vernier/data/baselines.h>
#include <vernier/data/data_loader.h>
#include <vernier/data/evaluation.h>
#include <vernier/roles.h>

#include <functional>
#include <optional>
#include <vector>

namespace vernier {

// It reads the options batch_size, order, drop_last, workers, prefetch and recompute. All calls are on the main thread.
class VERNIER_API SupervisedTask : public Task {
 public:
  using Forward = std::function<torch::Tensor(const Batch& batch)>;
  using Loss = std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)>;

  explicit SupervisedTask(Options& options, std::int64_t batch_size = 32);
  ~SupervisedTask() override;

  // Called once, in prepare(): makes model and data for the functions below. LibTorch's generators have run.seed.
  virtual void build(Run& run) = 0;

  // The output of the model for a batch on the run's device; dimension 0 is the sample. What set_model() was given.
  torch::Tensor forward(const Batch& batch);

  // Called before prepare() by those who use a trained model: build() takes what training learned of its data from
  // here. reads_data: build() reads data too, to evaluate on them; else it must open no file of the configuration.
  void use_learned(State learned, bool reads_data);
  const State& learned() const;    // after prepare: see set_learned()
  const Targets& targets() const;  // argument of set_loss()
  // The first training samples, without targets that forward() does not take; if there are none, numbers of their
  // dtypes and shapes. A task whose model is used on other shapes than it is trained on gives those.
  virtual Batch example(std::int64_t samples) const;
  DataLoader loader_of(const DatasetPtr& dataset) const;  // in order, with this task's options

  void attach(Bus& bus) override;
  void prepare(Run& run) override;
  // Tries the last batch of an epoch and of each validation, where it is smaller than the others.
  void check(const Run& run) override;
  Batch next() override;
  std::int64_t batches_per_epoch() const override;
  torch::Tensor loss(const Batch& micro_batch) override;
  std::string where(std::int64_t index) const override;
  torch::Tensor validate(Run& run) override;
  torch::Tensor validate_batch(Run& run, const Batch& batch) override;
  std::optional<std::vector<MetricInfo>> measures() const override;
  State save() const override;
  void load(const State& state) override;
  std::string memory_remedy() const override;
  // A batch of a validation: the set's name and data, which Batch::indices are places in, outputs and targets. loss:
  // the task's, of outputs and the batch that they are of.
  struct Seen {
    const std::string& set;
    const Batch& batch;
    const torch::Tensor &output, target;
    const Dataset& dataset;
    std::function<torch::Tensor(const torch::Tensor& output, const Batch& batch)> loss;
  };
  // Validates another model on the same data, such as a baseline. `watch` gets each batch.
  using Watch = std::function<void(const Seen& seen)>;
  torch::Tensor validate_with(Run& run, const Forward& model, const Watch& watch = {});

 protected:
  std::int64_t batch_size() const;  // the option
  // Any module whose forward() takes the batch's first tensor, also a torch::nn::Sequential. With another forward(),
  // give a function too. Floating-point inputs are converted to the model's dtype first, unless keeps_inputs is true:
  // then the model does it itself, and computes with their float32 numbers before it rounds them.
  template <class Model>
  void set_model(Model model) {
    if constexpr (requires { model.ptr(); }) {
      set_model(model.ptr());
    } else {
      set_model(model, [model = model.get()](const Batch& batch) { return model->forward(batch.tensors[0]); });
    }
  }
  void set_model(std::shared_ptr<torch::nn::Module> model, Forward forward, bool keeps_inputs = false);
  // Calls a part of the model in its forward(): with option `recompute`, backward computes it again to save memory.
  torch::Tensor recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& part,
                           const torch::Tensor& x) const;

  // Keeps what the model needs of the training data besides its weights: columns, words, classes, scales, sizes.
  // build() calls it. Each checkpoint has it, as "learned", so that a trained model is used without the data. A run is
  // not resumed with other entries below "given/", the files that the model is made from. Names below "example/" and
  // "targets/" are those of this class, which keeps its own facts there; a later call replaces all others.
  void set_learned(State learned);
  bool is_trained() const;  // build(): learned() has been given, so nothing is learned from data
  bool reads_data() const;  // build(): data are read. If not, set_training() need not be called

  void set_training(DatasetPtr dataset, torch::Tensor weights = {});  // weights: see DataLoaderOptions
  // Trains on data that never end, so the TOML must set `steps` in [run]. The first sample is read twice, since
  // prepare() looks at it.
  void set_training(StreamPtr stream);
  // A validation set. The first is the one whose loss is the run's; others report "<name>_loss" and so on.
  void add_validation(DatasetPtr dataset, const std::string& name = "");
  // loss: mean over the samples; target: its place in Batch::tensors. nullopt: forward() takes all tensors of a batch
  // and returns the loss itself; `loss` may be empty then, and gets an undefined target if it is not. are: what the
  // loss makes of outputs and targets.
  void set_loss(Loss loss, std::optional<std::size_t> target = 1, Targets are = {});
  // A metric of each validation set: a task calls it for each of metrics_by_name(). It warns of one that is always 1.
  void add_metric(MetricPtr metric);
  // target_facts() or forecast_facts() of the training data, for baselines_of(): learned() keeps them, as "targets".
  // Given in training alone. However the run ends, it warns if a model without weights is better.
  void learn_targets(State facts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vernier
