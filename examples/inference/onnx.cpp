// Answers with a model that `vernier export RUN --format onnx --output model.onnx` has written of a run of
// task/tabular. This program needs onnxruntime alone: neither Vernier nor LibTorch.
#include <onnxruntime_cxx_api.h>

#include <array>
#include <charconv>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

double number_of(const std::string& name, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw std::invalid_argument(name + " is '" + text + "', and must be a number");
}

// Returns a column of one row, [1, 1]: a text or a number, as the model takes it.
Ort::Value column(const std::string& name, ONNXTensorElementDataType type, const std::string& text,
                  OrtAllocator* allocator) {
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING && type != ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) {
    throw std::invalid_argument(name + " is not a column of a table: it is neither texts nor float64");
  }
  constexpr std::array<std::int64_t, 2> shape = {1, 1};
  auto value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type);
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    const char* texts[] = {text.c_str()};
    value.FillStringTensor(texts, 1);
  } else {
    *value.GetTensorMutableData<double>() = number_of(name, text);
  }
  return value;
}

void print(const std::string& name, const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  std::cout << name;
  for (std::size_t i = 0; i < info.GetElementCount(); ++i) {
    std::cout << ' ';
    if (info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
      std::string text(value.GetStringTensorElementLength(i), ' ');
      value.GetStringTensorElement(text.size(), i, text.data());
      std::cout << text;
    } else if (info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) {
      std::cout << value.GetTensorData<double>()[i];
    } else {
      std::cout << value.GetTensorData<float>()[i];
    }
  }
  std::cout << '\n';
}

}  // namespace

// main MODEL COLUMN=VALUE…: prints what the model says about one row.
int main(int argc, char** argv) try {
  if (argc < 3) throw std::invalid_argument("usage: inference_onnx MODEL COLUMN=VALUE…");
  std::map<std::string, std::string> row;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const auto end = word.find('=');
    if (end == std::string::npos) throw std::invalid_argument("'" + word + "' must be COLUMN=VALUE");
    row[word.substr(0, end)] = word.substr(end + 1);
  }
  Ort::Env environment;
  Ort::Session session(environment, argv[1], Ort::SessionOptions());
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> names;
  std::vector<Ort::Value> columns;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
    names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    if (!row.contains(names.back())) throw std::invalid_argument("the model needs " + names.back() + "=VALUE");
    const auto type = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetElementType();
    columns.push_back(column(names.back(), type, row.at(names.back()), allocator));
  }
  const auto inputs = names.size();
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
    names.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
  }
  std::vector<const char*> all;
  for (const auto& name : names) all.push_back(name.c_str());
  const auto outputs =
      session.Run(Ort::RunOptions(), all.data(), columns.data(), inputs, all.data() + inputs, session.GetOutputCount());
  for (std::size_t i = 0; i < outputs.size(); ++i) print(names[inputs + i], outputs[i]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
