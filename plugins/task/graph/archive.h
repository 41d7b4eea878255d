// Reads a file of torch.export.save: a zip whose records are stored, not compressed. The file is not trusted.
#pragma once

#include <caffe2/serialize/inline_container.h>
#include <vernier/tensor.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace graph {

// The folders of a file that have tensors.
inline constexpr const char *weights_folder = "data/weights", *constants_folder = "data/constants";

class Archive {
 public:
  using Tensors = std::map<std::string, torch::Tensor>;  // by name

  // A tensor as a file describes it: a part of a storage.
  struct View {
    c10::ScalarType dtype;
    std::vector<std::int64_t> sizes, strides;
    std::int64_t offset;
    bool operator==(const View&) const = default;
  };

  // bytes: the file's, uint8. Throws Error if they are not such a zip, or if its records cannot fit into it.
  Archive(torch::Tensor bytes, std::string path);

  const std::string& path() const { return path_; }
  // Returns the record of the program. Throws Error if there is none, or several.
  nlohmann::json program();
  // Returns what the exporting script wrote beside it under a name; null: nothing.
  nlohmann::json extra(const std::string& name);
  // Returns the tensors of a folder. Names of the same view share their tensor, and views that have elements in common
  // share memory. Throws Error where a record is too short for its tensor.
  Tensors tensors(const std::string& folder);
  // Returns the file's bytes with other values in the place of the tensors of these names, in the dtypes of the file.
  std::string with(const Tensors& tensors);

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct Named {
    std::string name;
    View view;
    bool trains;
    bool is_tied_to(const Named& other) const { return view == other.view && trains == other.trains; }
  };

  std::pair<at::DataPtr, std::size_t> record_of(const std::string& record);
  nlohmann::json json(const std::string& record);
  nlohmann::json config(const std::string& folder);
  torch::Tensor bytes_of(const std::string& record);
  View view_of(const std::string& name, const std::string& record, const nlohmann::json& meta);
  void read(const std::string& record, const std::vector<Named>& all, Tensors& by_name);

  torch::Tensor bytes_;
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

}  // namespace graph
