// Parts that the rules of operators have in common.
#pragma once

#include <c10/util/StringUtil.h>

#include <functional>
#include <string>

#include "loops.h"

namespace vernier::compile {

// The arguments of a rule.
struct Given {
  const Tape::Call& call;
  std::size_t number;
  const Memory& memory;

  const c10::IValue& value(std::size_t i) const { return call.arguments.at(i); }
  at::Tensor tensor(std::size_t i) const { return value(i).isTensor() ? value(i).toTensor() : at::Tensor(); }
  at::Tensor operand(std::size_t i) const;  // a scalar is a wrapped number, as LibTorch makes of it
  at::Tensor result(std::size_t i = 0) const {
    return call.results.at(i).isTensor() ? call.results[i].toTensor() : at::Tensor();
  }
  // Returns true if a later operator reads the result, or if somebody holds it.
  bool is_read(const at::Tensor& result) const { return memory.is_read_after(number, result); }
  std::string address(const at::Tensor& tensor) const {
    return tensor.defined() ? memory.address(tensor) : "static_cast<float*>(nullptr)";
  }
  std::string number_of(std::size_t i) const {
    return constant(value(i).toScalar().toDouble(), type_of(result().scalar_type()));
  }
  // The operator raises the error that it raises without a program.
  std::string or_call(const std::string& condition) const {
    return c10::str("if (!", condition, ") call(program, ", number, ");");
  }
};

// Returns the statements of an operator, or "" for arguments that it does not compute with.
using Rule = std::function<std::string(const Given&)>;

inline bool is_float(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat;
}
inline bool is_plain(const at::Tensor& tensor, at::ScalarType dtype = at::kFloat) {
  return tensor.defined() && tensor.scalar_type() == dtype && tensor.is_contiguous();
}
inline bool is_plain_or_none(const at::Tensor& tensor) {
  return !tensor.defined() || is_plain(tensor);
}

// True where this process exports the product of a BLAS, which programs call if a product is large.
bool has_large_products();

// Returns the code of an LSTM layer, which LibTorch computes with oneDNN.
std::string recurrent(const Given& given);
std::string recurrent_backward(const Given& given);
// Returns the tensor that forward of an LSTM saves for backward. LibTorch or the program defines its layout.
at::Tensor workspace_of(const Tape::Call& call);
extern const char* const recurrent_head;  // the source of the functions that the code of recurrent() calls

}  // namespace vernier::compile
