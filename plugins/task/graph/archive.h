// Reads a file of torch.export.save: a zip whose records are stored, not compressed. The file is not trusted.
#pragma once

#include <caffe2/serialize/inline_container.h>
#include <vernier/tensor.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace graph {

class Archive {
 public:
  // bytes: the file's, uint8. Throws Error if they are not such a zip, or if its records cannot fit into it.
  Archive(torch::Tensor bytes, std::string path);

  const std::string& path() const { return path_; }
  // Returns the record of the program. Throws Error if there is none, or several.
  nlohmann::json program();
  // Returns that of the model in evaluation mode, which export.py writes where it differs; else null.
  nlohmann::json evaluation();
  // Returns the tensors of a folder, "data/weights" or "data/constants", by name. Names that share a record share
  // their tensor. Throws Error where a record is too short for its tensor.
  std::map<std::string, torch::Tensor> tensors(const std::string& folder);
  // Returns the file's bytes with other tensors of the same names, dtypes and sizes in the place of the weights.
  std::string with(const std::map<std::string, torch::Tensor>& tensors);

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::pair<at::DataPtr, std::size_t> record_of(const std::string& record);
  nlohmann::json json(const std::string& record);
  nlohmann::json config(const std::string& folder);
  torch::Tensor tensor(const std::string& record, const nlohmann::json& meta);

  torch::Tensor bytes_;
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

}  // namespace graph
