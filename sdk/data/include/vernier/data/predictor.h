// Models that people use outside of training: `vernier predict` and `vernier export`.
#pragma once

#include <vernier/batch.h>
#include <vernier/data/dataset.h>
#include <vernier/state.h>

#include <string>
#include <vector>

namespace vernier {

// A task that is not a SupervisedTask derives from it to be used after training.
class VERNIER_API TrainedModel {
 public:
  virtual ~TrainedModel();
  // Called before Task::prepare with what the task saved in training. reads_data: to evaluate on data; else no file of
  // the configuration is opened. By default nothing.
  virtual void use_trained(const State& saved, bool reads_data);
};

// A task derives from it beside SupervisedTask. Main thread only, after Task::prepare.
class VERNIER_API Predictor {
 public:
  // Numbers of a batch under one name: one for each sample, or several.
  struct Column {
    std::string name;
    torch::Tensor numbers;                 // [samples], [samples, numbers] or [samples, …], any dtype
    std::vector<std::string> labels = {};  // words for integers, if there are any
    bool on_request = false;               // written for `vernier predict --probabilities` alone
  };

  virtual ~Predictor();
  // Returns the data of a file that `vernier predict` names, without targets.
  virtual DatasetPtr read_inputs(const std::string& path) = 0;
  // The same for a model of several inputs, which get a file each, or all the same one. By default it refuses more than
  // one file.
  virtual DatasetPtr read_several(const std::vector<std::string>& paths);
  // Returns the rows of `vernier predict` for a batch on the run's device. By default empty: the column "output" has
  // what SupervisedTask::forward() returns.
  virtual std::vector<Column> predict(const Batch& batch);
  // Returns a JSON object that says how to use the model without this program: names, order and words of its inputs,
  // classes or unit of its output. Exports have it beside the weights. By default "": there is nothing to say.
  virtual std::string description() const;
  // Returns the names of the classes, where SupervisedTask::forward() gives logits [samples, classes]: an ONNX file
  // then has the outputs "class" and "probabilities" as well. By default none.
  virtual std::vector<std::string> classes() const;
  // Returns Python source of the model for `vernier export --format python`: a torch.nn.Module whose weights have the
  // same names. By default "": there is none.
  virtual std::string python_model() const;
  // Writes the model for `vernier export --format torchscript`. By default returns false: forward() is traced.
  virtual bool save_torchscript(const std::string& file) const;
  // Writes the model for `vernier export --format pt2`, a file of torch.export. By default returns false: it cannot.
  virtual bool save_pt2(const std::string& file) const;
};

}  // namespace vernier
