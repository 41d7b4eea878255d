// The common part of task/graph and task/script: data, loss, metrics and predictions of a model from Python.
#pragma once

#include <vernier/data/data_source.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/draft/capture.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "task/exported/network.h"
#include "task/exported/places.h"

namespace exported {

using vernier::Batch;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::Run;

// The form of an argument of forward(), learned from the training data.
struct Form {
  torch::ScalarType dtype = torch::kFloat32;
  std::vector<std::int64_t> shape;          // shape of a sample
  std::vector<std::string> columns, words;  // columns and words of a CSV file
  bool may_be_codes = false;                // whole numbers that are not int64
};

// A plugin adds network_of(), and gives its name and what the option `model` says of the file.
class ExportedTask : public vernier::SupervisedTask, public vernier::Predictor, public vernier::draft::Capturable {
 public:
  ExportedTask(Options& options, const char* name, const char* kind_of_file);
  void build(Run& run) override;
  void check(const Run& run) override;
  DatasetPtr read_inputs(const std::string& path) override { return read_several({path}); }
  // A source for each input, or a file with the same parts in it; an image or a folder of images.
  DatasetPtr read_several(const std::vector<std::string>& paths) override;
  std::vector<Column> predict(const Batch& batch) override;
  std::string description() const override;
  std::optional<double> weight_of(const Batch& part) const override;

 private:
  // Returns the model of a file's bytes. path: for messages.
  virtual std::shared_ptr<Network> network_of(const torch::Tensor& bytes, const std::string& path) = 0;

  bool has_classes() const { return loss_ == "cross_entropy" || loss_ == "nll"; }
  void refuse_contradictions(const Options& options) const;
  // Checks the names of files, of which a trained model needs none.
  void check_data();
  // The facts that the model needs besides its weights.
  vernier::State facts() const;
  void recall();
  // A source for each input, of files that are given for them.
  std::vector<std::string> sources_of(const std::vector<std::string>& files) const;
  void build_data(std::uint64_t seed);
  DatasetPtr read(const std::vector<std::string>& inputs, const std::string& target);
  // The arguments of forward(), in the forms of the training data. The first call learns these.
  std::vector<torch::Tensor> read_tensors(const std::vector<std::string>& names);
  // Numbers in the dtype of the network, which is given what it was exported for: no mean is taken off.
  torch::Tensor fitted(const torch::Tensor& numbers, const vernier::Source& source) const;
  // Makes whole numbers int64 if forward() fails for their own dtypes. Returns what it returns for two samples. Throws
  // Error if it fails for any.
  torch::Tensor fit_dtypes(std::vector<torch::Tensor>& tensors);
  // output: of the model for two samples, where it is known. input: the shape of a sample's first input.
  torch::Tensor read_target(vernier::Source source, const torch::Tensor& output, c10::IntArrayRef input);
  torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) const;

 protected:
  const std::shared_ptr<Network>& network() const { return network_; }

 private:
  const char* name_;
  std::string model_;
  std::vector<std::string> inputs_;
  std::string target_;
  std::vector<std::string> held_out_inputs_;
  std::string held_out_target_;
  double share_;
  std::int64_t size_;
  std::string loss_;
  std::vector<std::string> metrics_;
  Places places_;
  torch::Tensor class_weights_;  // undefined: all count the same

  torch::Tensor bytes_;  // bytes of the model's file
  std::shared_ptr<Network> network_;
  DatasetPtr training_, held_out_;
  torch::Tensor image_labels_;
  std::vector<std::string> names_of_files_;  // pictures of read_several()
  bool has_images_ = false;
  vernier::CsvOptions form_;
  std::vector<Form> forms_;                             // one for each argument of forward()
  std::function<std::string(std::int64_t row)> where_;  // place of a row in the first source that was read last
  vernier::Classes classes_;
  std::int64_t outputs_ = 0;               // labels or numbers of a sample; 0: not known yet
  std::vector<std::string> output_names_;  // columns of a CSV file
  bool misses_labels_ = false;             // some labels are NaN
  vernier::State data_facts_;              // facts of NamedData
};

}  // namespace exported
