// LayerNorm, RMSNorm and softmax over dense rows. They compute in float32 and round once.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace vernier {

struct Rows {
  std::int64_t count, columns;
};

// The softmax of rows that are given in blocks of their columns. Of each row: its largest number until now, the sum of
// e^(number - largest), and in the end the logarithm of that.
struct RowSums {
  float* largest;
  double* sums;
  float* log_sums;
};

// Element: float, c10::BFloat16 or c10::Half. Weight and bias of a norm, and their gradients, may be missing.
template <class Element>
struct RowKernels {
  // y = (x - mean) / root of (variance + eps), times weight, plus bias. inverses: of the roots.
  void (*layer_norm)(Rows, const Element* x, const float* weight, const float* bias, float eps, Element* y,
                     float* means, float* inverses);
  // y = x / root of (mean of squares + eps), times weight.
  void (*rms_norm)(Rows, const Element* x, const float* weight, float eps, Element* y, float* inverses);
  // Backward of LayerNorm or, without means, of RMSNorm. Adds to the gradients of weight and bias.
  void (*norm_backward)(Rows, const Element* dy, const Element* x, const float* weight, const float* means,
                        const float* inverses, Element* dx, float* weight_gradient, float* bias_gradient);
  void (*sum_of_rows)(Rows, const float* x, float* y);

  // y = x - log of the sum of e^x, or its e^. LibTorch's backward of softmax is as fast as one of these would be.
  void (*log_softmax)(Rows, const Element* x, Element* y);
  void (*softmax)(Rows, const Element* x, Element* y);
  void (*log_softmax_backward)(Rows, const Element* dy, const Element* y, Element* dx);

  // y is the log softmax of x, and a loss is -y at the target of its row, or 0 where that is `ignored`.
  void (*cross_entropy)(Rows, const Element* x, const std::int64_t* targets, std::int64_t ignored, Element* y,
                        float* losses);
  // slope: of the sum of the losses.
  void (*cross_entropy_backward)(Rows, const Element* y, const std::int64_t* targets, std::int64_t ignored, float slope,
                                 Element* dx);

  // Adds a block of columns.
  void (*add_to_softmax)(Rows, const Element* x, RowSums sums);
  // y = factor of the row * softmax of a block, minus the row's shift. float16 has no room for factors that are small.
  using Slope = std::conditional_t<std::is_same_v<Element, c10::Half>, float, Element>;
  void (*scaled_softmax)(Rows, const Element* x, RowSums sums, const float* factors, const float* shifts, Slope* y);

  // y = x in the other dtype.
  void (*to_floats)(std::int64_t count, const Element* x, float* y);
  void (*from_floats)(std::int64_t count, const float* x, Element* y);
};

}  // namespace vernier
