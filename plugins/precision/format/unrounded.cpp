#include "unrounded.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace formats {

namespace {

struct Frame final : at::ObserverContext {
  Frame* outer = nullptr;
  std::string name;
  bool adds_products = false, is_settled = false, has_inner = false;  // has_inner: it calls one that adds products
};

thread_local Unrounded* now = nullptr;
thread_local Frame* frame = nullptr;  // the operator in work

// Returns how many tensors of real numbers an operator of this name takes if it adds up products, else 0.
int operands_of(std::string_view name) {
  constexpr std::string_view of_one =
                                 " linalg fft matrix inverse pinverse det logdet slogdet lu cholesky qr svd pdist ",
                             of_two =
                                 " linear bilinear trilinear einsum rnn lstm gru cdist attention euclidean solve "
                                 "cosine inner outer ger kron addr ormqr bag transformer ";
  int operands = 0;
  for (auto rest = name.substr(name.rfind(':') + 1); !rest.empty();) {
    const auto word = rest.substr(0, rest.find('_'));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const auto is_in = [&](std::string_view words) { return words.find(" " + std::string(word) + " ") != words.npos; };
    if (word == "norm" || word == "diagonal") return 0;
    const bool is_product = word.ends_with("mm") || word.ends_with("mv") || word.ends_with("matmul") ||
                            word.ends_with("dot") || word.starts_with("conv");
    if (is_product || is_in(of_two)) operands = 2;
    if (operands == 0 && is_in(of_one)) operands = 1;
  }
  return operands;
}

// Operators of other libraries have any name.
bool is_of_others(const at::RecordFunction& function) {
  const auto space = std::string_view(function.name()).substr(0, std::string_view(function.name()).find(':'));
  if (space == "aten" || space == "prim" || space == "prims" || space == "vernier" || space == "mkldnn") return false;
  const auto handle = c10::Dispatcher::singleton().findSchema(*function.operator_name());
  return !handle || !handle->hasTag(at::Tag::pointwise);
}

}  // namespace

struct UnroundedCalls {
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    if (now == nullptr || (frame != nullptr && frame->is_settled) || !function.operator_name()) return nullptr;
    int numbers = 0, layer = -1;
    const auto look = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      numbers += tensor.is_floating_point() || tensor.is_complex() ? 1 : 0;
      if (layer < 0) layer = now->layers_.find(tensor);
    };
    for (const auto& input : function.inputs()) {
      if (input.isTensor()) look(input.toTensor());
      if (!input.isTensorList()) continue;
      for (const at::Tensor& tensor : input.toTensorList()) look(tensor);
    }
    auto entered = std::make_unique<Frame>();
    const int needed = operands_of(function.name());
    entered->adds_products = needed != 0 ? numbers >= needed : numbers >= 2 && is_of_others(function);
    entered->outer = std::exchange(frame, entered.get());
    const std::string_view name = function.name();
    entered->name = entered->outer != nullptr ? entered->outer->name : name.substr(name.starts_with("aten::") ? 6 : 0);
    if (entered->outer == nullptr && layer >= 0) {
      entered->name += " of " + now->layers_.names()[static_cast<std::size_t>(layer)];
    }
    return entered;
  }
  static void leave(const at::RecordFunction&, at::ObserverContext* context) {
    const auto* left = static_cast<Frame*>(context);
    if (left == nullptr) return;
    frame = left->outer;
    if (left->adds_products && !left->is_settled && !left->has_inner) now->found_.insert(left->name);
    if (frame != nullptr && (left->adds_products || left->is_settled || left->has_inner)) frame->has_inner = true;
  }
};

bool adds_products(std::string_view name) {
  return operands_of(name) != 0;
}

Unrounded::Unrounded(vernier::Layers& layers, std::set<std::string>& found)
    : layers_(layers), found_(found), before_(std::exchange(now, this)) {
  layers.refresh();
  if (before_ != nullptr) return;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&UnroundedCalls::enter, &UnroundedCalls::leave)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

Unrounded::~Unrounded() {
  now = before_;
  if (before_ == nullptr) at::removeCallback(callback_);
}

void Unrounded::settle() {
  if (frame != nullptr) frame->is_settled = true;
}

}  // namespace formats
