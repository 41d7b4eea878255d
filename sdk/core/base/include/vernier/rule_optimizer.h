// The base of optimizers with a rule of their own. The plugin writes the update of one parameter; groups, layer_decay,
// schedules, skipped updates, master weights, frozen parameters, saved state and shards are done here.
//
//   class Lion final : public vernier::RuleOptimizer {
//    public:
//     explicit Lion(vernier::Options& options)
//         : RuleOptimizer(options, 1e-4, {{"weight_decay", 0.0, "share taken off", vernier::at_least(0)}}) {}
//
//    private:
//     void update(Update& p) override {
//       auto& mean = p.slot("exp_avg");
//       p.weight.mul_(1 - p.lr * p.option("weight_decay")).sub_(p.lr * mean.lerp(p.grad, 0.1).sign());
//       mean.lerp_(p.grad, 0.01);
//     }
//   };
//
// Options: learning_rate, layer_decay and [[optimizer.group]] tables, which have learning_rate and the further numbers.
#pragma once

#include <vernier/parameter_groups.h>
#include <vernier/roles.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

class VERNIER_API RuleOptimizer : public Optimizer {
 public:
  ~RuleOptimizer() override;
  void prepare(Run& run) override;
  void step(Run& run) override;
  bool updates_each_alone() const override;
  std::vector<MetricInfo> metrics() const override;
  // Returns the slots, under names such as "layer.0.weight/exp_avg", and the members that remember() was given.
  State save() const override;
  void load(const State& state) override;

 protected:
  // A number that each group may have.
  struct Number {
    const char* key;
    double fallback;
    const char* meaning;
    Range range = {};
  };
  RuleOptimizer(Options& options, double learning_rate, std::vector<Number> numbers = {});

  // One update of one parameter. Tensors may be changed in place or replaced. If the update is skipped, they are put
  // back on the device, and the rule is not called where the flag is on the CPU.
  class VERNIER_API Update {
   public:
    torch::Tensor weight, grad;  // the master and its gradient, which is divided by the loss scale
    double lr = 0;               // with schedule, group and layer_decay
    const std::string* name = nullptr;

    // Returns this parameter's tensor of that name. It has the weight's shape and begins as zeros. Its dtype is the
    // weight's, unless `dtype` is given.
    torch::Tensor& slot(const std::string& name, std::optional<torch::ScalarType> dtype = {});
    // The same of any shape and dtype. first: makes it for the parameter's first update. It is copied.
    torch::Tensor& slot(const std::string& name, const std::function<torch::Tensor()>& first);
    // Updates of this parameter, this one included: float32, 0-dim, on its device, saved as "step".
    torch::Tensor step();
    double option(const std::string& key) const { return options_->at(key); }  // a number of this parameter's group

   private:
    friend class RuleOptimizer;
    struct Old {
      torch::ScalarType dtype;
      torch::Tensor value;
    };
    void finish(const torch::Tensor& master, const torch::Tensor& skips);
    const std::map<std::string, double>* options_ = nullptr;
    Tensors* slots_ = nullptr;
    std::map<std::string, Old> old_;  // the slots that the rule has asked for, as they were
    bool keeps_ = false, counts_ = false;
  };
  // Called for each parameter with a gradient, without gradient mode.
  virtual void update(Update& parameter) = 0;

 private:
  using Numbers = std::map<std::string, double>;
  static Numbers read(Options& options, const Numbers& fallbacks, const std::vector<Number>& numbers);

  std::vector<Number> numbers_;
  std::vector<Numbers> settings_;  // settings of the parameters in no group, then of each group
  ParameterGroups groups_;
  double layer_decay_;
  std::vector<std::size_t> group_of_;
  std::vector<double> rate_of_;
  std::vector<Tensors> slots_;  // one for each of the run's parameters
  const Run* run_ = nullptr;
};

}  // namespace vernier
