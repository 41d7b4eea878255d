#include "formula.h"

#include <ATen/ATen.h>

#include <exception>
#include <mutex>

#include "base/parallel.h"

namespace vernier {

namespace {

torch::Tensor widened(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? tensor : tensor.to(torch::kFloat32);
}

void put_result(const torch::Tensor& kept, const torch::Tensor& now, const MaybeTensor& found_inf) {
  kept.copy_(found_inf ? at::where(*found_inf != 0, kept, now.to(kept.scalar_type())) : now);
}

void apply_to_one(const UpdateLists& lists, std::size_t i, const Formula& formula, double lr,
                  const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  FormulaUpdate update{widened(lists.parameters[i]), widened(lists.gradients[i]), {}, {}};
  if (grad_scale) update.gradient = update.gradient / *grad_scale;
  if (!lists.steps.empty()) update.step = lists.steps[i].to(torch::kFloat64);
  for (const auto& slot : lists.slots) update.slots.push_back(widened(slot[i]));
  formula(update, lr);
  put_result(lists.parameters[i], update.parameter, found_inf);
  for (std::size_t k = 0; k < update.slots.size(); ++k) put_result(lists.slots[k][i], update.slots[k], found_inf);
}

}  // namespace

void apply_formula(const UpdateLists& lists, const Formula& formula, double lr, const MaybeTensor& grad_scale,
                   const MaybeTensor& found_inf) {
  const auto count = lists.parameters.size();
  if (count == 0) return;
  if (!lists.parameters.front().is_cpu()) {
    for (std::size_t i = 0; i < count; ++i) apply_to_one(lists, i, formula, lr, grad_scale, found_inf);
    return;
  }
  std::exception_ptr thrown;  // by any thread, such as an error that memory is short
  std::mutex mutex;
  for_each_chunk(count, /*chunks_a_thread=*/1, [&](std::size_t i) {
    try {
      const at::AutoDispatchBelowAutograd direct;  // holds for one thread
      const OneThread guard(true);
      apply_to_one(lists, i, formula, lr, grad_scale, found_inf);
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace vernier
