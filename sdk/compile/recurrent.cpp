// The rules of LSTM layers, which oneDNN computes for LibTorch, and the head of each program with such a layer.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/autograd.h>

#include <algorithm>

#include "bounds.h"
#include "rules.h"

namespace vernier::compile {

namespace {

// The arguments that aten::mkldnn_rnn_layer and its backward have in common.
struct Layer {
  explicit Layer(const Tape::Call& call)
      : is_backward(call.op.schema().name() == "aten::mkldnn_rnn_layer_backward"), call_(call) {}
  const c10::IValue& value(std::size_t forward, std::size_t backward) const {
    return call_.arguments.at(is_backward ? backward : forward);
  }
  bool is_reversed() const { return value(7, 13).toBool(); }
  bool is_lstm() const { return value(9, 14).toInt() == 2; }
  bool is_for_training() const { return value(15, 18).toBool(); }
  bool has_biases() const { return value(12, 17).toBool(); }
  bool is_packed() const { return !value(8, 20).toIntVector().empty(); }

  bool is_backward;

 private:
  const Tape::Call& call_;
};

// Returns false for what the functions of the head do not read.
bool can_be_written(const Given& given, const at::Tensor& workspace) {
  const Layer layer(given.call);
  if (!has_large_products() || !layer.is_lstm() || layer.is_reversed() || layer.is_packed() || !layer.is_for_training())
    return false;
  for (std::size_t i = 0; i < 7; ++i) {
    if (!is_plain(given.tensor(i))) return false;
  }
  const auto x = given.tensor(0), state = given.tensor(5);
  const auto needed = x.size(0) * state.numel() * 6 * 4;  // gates, cells and their tanh
  return x.dim() == 3 && x.numel() > 0 && workspace.scalar_type() == at::kByte &&
         static_cast<std::int64_t>(workspace.nbytes()) >= needed && workspace.nbytes() % 4 == 0;
}

std::string sizes(const Given& given) {
  const auto x = given.tensor(0);
  return c10::str(x.size(0), ", ", x.size(1), ", ", x.size(2), ", ", given.tensor(2).size(1));
}

}  // namespace

at::Tensor workspace_of(const Tape::Call& call) {
  return Layer(call).is_backward ? call.arguments.at(22).toTensor() : call.results.at(3).toTensor();
}

std::string recurrent(const Given& given) {
  const auto workspace = workspace_of(given.call);
  if (!can_be_written(given, workspace)) return "";
  auto text = c10::str("recurrent<", sizes(given), ">(");
  for (std::size_t i = 0; i < 7; ++i) text += given.address(given.tensor(i)) + ", ";
  for (std::size_t i = 0; i < 3; ++i) {
    if (!is_plain(given.result(i))) return "";
    text += given.address(given.result(i)) + ", ";
  }
  return text + given.address(workspace.view(at::kFloat)) + ");";
}

std::string recurrent_backward(const Given& given) {
  const auto workspace = workspace_of(given.call);
  if (!can_be_written(given, workspace)) return "";
  if (!is_plain(given.tensor(7))) return "";
  auto text = c10::str("recurrent_backward<", sizes(given), ">(");
  for (const std::size_t i : {0, 1, 2, 5, 6, 7}) text += given.address(given.tensor(i)) + ", ";
  for (const std::size_t i : {10, 11, 12}) {  // slopes of all outputs and of the last state
    const auto slope = given.tensor(i);
    if (slope.defined() && !is_float(slope)) return "";
    text += i == 10 ? "[=](long t, long b, long u) { return " : "[=](long b, long u) { return ";
    if (slope.defined()) {
      text += given.address(slope) + "[u * " + std::to_string(slope.stride(-1)) + " + b * " +
              std::to_string(slope.stride(-2)) + (i == 10 ? " + t * " + std::to_string(slope.stride(0)) : "") + "]";
    } else {
      text += "0.0f";
    }
    text += "; }, ";
  }
  text += given.address(workspace.view(at::kFloat));
  for (std::size_t i = 0; i < 7; ++i) {
    const auto result = given.result(i);
    if (!is_plain(result)) return "";
    text += ", " + given.address(given.is_read(result) ? result : at::Tensor());
  }
  return text + ");";
}

bool is_recurrent(const Tape::Call& call) {
  const auto& name = call.op.schema().name();
  return (name == "aten::mkldnn_rnn_layer" || name == "aten::mkldnn_rnn_layer_backward") && Layer(call).is_lstm();
}

Tape::Values recurrent_in_float64(const Tape::Call& call, const Tape::Values& given) {
  const Layer layer(call);
  auto allowed = c10::impl::tls_local_dispatch_key_set();
  allowed.excluded_ = allowed.excluded_ - c10::autograd_dispatch_keyset;
  const c10::impl::ForceDispatchKeyGuard with_autograd(allowed);
  const at::AutoGradMode records(layer.is_backward);
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < 7; ++i) {
    leaves.push_back(given[i].toTensor().detach().to(at::kDouble).requires_grad_(layer.is_backward));
  }
  const auto turned = [&](const at::Tensor& x) { return layer.is_reversed() ? x.flip(0) : x; };
  const auto as_layers = [](const at::Tensor& state) { return state.reshape({1, -1, state.size(-1)}); };
  const bool has_biases = layer.has_biases();
  const std::vector<at::Tensor> weights(leaves.begin() + 1, leaves.begin() + (has_biases ? 5 : 3));
  auto [y, h, c] = at::lstm(turned(leaves[0]), {as_layers(leaves[5]), as_layers(leaves[6])}, weights, has_biases,
                            /*num_layers=*/1, /*dropout=*/0, /*train=*/true, /*bidirectional=*/false,
                            /*batch_first=*/false);
  std::vector<at::Tensor> results = {turned(y), h.reshape(leaves[5].sizes()), c.reshape(leaves[6].sizes())};
  if (!layer.is_backward) return {results[0], results[1], results[2], at::empty({0}, at::kByte)};
  std::vector<at::Tensor> slopes;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& slope = given[10 + i];
    const bool is_given = slope.isTensor() && slope.toTensor().defined();
    slopes.push_back(is_given ? slope.toTensor().to(at::kDouble) : at::zeros_like(results[i]));
  }
  const auto gradients = torch::autograd::grad(results, leaves, slopes, /*retain_graph=*/std::nullopt,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  Tape::Values all;
  for (std::size_t i = 0; i < 7; ++i) {
    // A layer without biases gets zeros of the shape of its weights, and gives gradients of the shape of a bias.
    const auto sizes = i == 3 || i == 4 ? std::vector<std::int64_t>{leaves[2].size(0)} : leaves[i].sizes().vec();
    all.emplace_back(gradients[i].defined() ? gradients[i].detach() : at::zeros(sizes, at::kDouble));
  }
  return all;
}

// Gates are in the order of LibTorch: input, forget, cell, output. A step multiplies its input and the last state by
// the weights in one product. The weights lie in panels, each with the four gates of one vector of units. work: holds
// gates, cells, and the tanh of cells.
const char* const recurrent_head = R"head(
template <int high, int n, long I, long H>
inline __attribute__((always_inline)) void gate_tile(const float* x, const float* h, const float* panel, float* gates) {
  Vector sums[high][4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const Vector bias = load<lanes>(panel + g * lanes);
#pragma GCC unroll 8
    for (int m = 0; m < high; ++m) sums[m][g] = bias;
  }
  const float* right = panel + 4 * lanes;
  const auto add = [&](const float* left, long row, long count) __attribute__((always_inline)) {
    for (long k = 0; k < count; ++k, right += 4 * lanes) {
#pragma GCC unroll 8
      for (int m = 0; m < high; ++m) {
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) sums[m][g] += left[m * row + k] * load<lanes>(right + g * lanes);
      }
    }
  };
  add(x, I, I);
  add(h, H, H);
#pragma GCC unroll 8
  for (int m = 0; m < high; ++m) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) store<n>(gates + m * 4 * H + g * H, sums[m][g]);
  }
}

template <int n, long B, long I, long H>
void gate_columns(const float* x, const float* h, const float* panel, float* gates) {
  constexpr long most = lanes == 16 ? 6 : 3, tiles = (B + most - 1) / most, high = B / tiles, higher = B % tiles;
  long row = 0;
  if constexpr (higher > 0) {
    for (; row < higher * (high + 1); row += high + 1) {
      gate_tile<high + 1, n, I, H>(x + row * I, h + row * H, panel, gates + row * 4 * H);
    }
  }
  for (; row < B; row += high) gate_tile<high, n, I, H>(x + row * I, h + row * H, panel, gates + row * 4 * H);
}

template <long T, long B, long I, long H>
void recurrent(const float* x, const float* to_gates, const float* from_state, const float* bias, const float* bias2,
               const float* h, const float* c, float* y, float* last_h, float* last_c, float* work) {
  constexpr long blocks = (H + lanes - 1) / lanes, panel = 4 * lanes * (1 + I + H);
  alignas(64) static float panels[blocks * panel];
  for (long j = 0; j < blocks; ++j) {
    float* const to = panels + j * panel;
    for (long u = 0; u < lanes && j * lanes + u < H; ++u) {
      for (long g = 0; g < 4; ++g) {
        const long unit = g * H + j * lanes + u, place = g * lanes + u;
        to[place] = bias[unit] + bias2[unit];
        for (long k = 0; k < I; ++k) to[(1 + k) * 4 * lanes + place] = to_gates[unit * I + k];
        for (long k = 0; k < H; ++k) to[(1 + I + k) * 4 * lanes + place] = from_state[unit * H + k];
      }
    }
  }
  float *const cells = work + T * B * 4 * H, *const tanhs = cells + T * B * H;
  for (long t = 0; t < T; ++t) {
    float* const gates = work + t * B * 4 * H;
    for (long j = 0; j + 1 < blocks; ++j) {
      gate_columns<lanes, B, I, H>(x + t * B * I, h, panels + j * panel, gates + j * lanes);
    }
    gate_columns<H - (blocks - 1) * lanes, B, I, H>(x + t * B * I, h, panels + (blocks - 1) * panel,
                                                    gates + (blocks - 1) * lanes);
    for (long b = 0; b < B; ++b) {
      float* const of = gates + b * 4 * H;
      const long row = (t * B + b) * H;
      LOOP (long u = 0; u < H; ++u) {
        const float in = sigmoid_of(of[u]), keep = sigmoid_of(of[H + u]), cell = tanh_of(of[2 * H + u]);
        const float out = sigmoid_of(of[3 * H + u]), now = keep * c[b * H + u] + in * cell, shown = tanh_of(now);
        of[u] = in;
        of[H + u] = keep;
        of[2 * H + u] = cell;
        of[3 * H + u] = out;
        cells[row + u] = now;
        tanhs[row + u] = shown;
        y[row + u] = out * shown;
      }
    }
    h = y + t * B * H;
    c = cells + t * B * H;
  }
  __builtin_memcpy(last_h, h, 4 * B * H);
  __builtin_memcpy(last_c, c, 4 * B * H);
}

// Slopes are functions: of [t, b, u] for y, and of [b, u] for the last state. A gradient that nobody reads is null.
template <long T, long B, long I, long H, class Slopes, class Last, class LastCell>
void recurrent_backward(const float* x, const float* to_gates, const float* from_state, const float* first_h,
                        const float* first_c, const float* y, const Slopes& slope, const Last& slope_h,
                        const LastCell& slope_c, float* work, float* dx, float* d_to_gates, float* d_from_state,
                        float* d_bias, float* d_bias2, float* dh_first, float* dc_first) {
  alignas(64) static float dh[B * H], dc[B * H], parts[4 * H];
  constexpr long wide = 2 * lanes, last = (H - 1) / wide * wide;
  alignas(64) static float panels[4 * H * (last + wide)];
  for (long n = 0; n < H; n += wide) {
    for (long k = 0; k < 4 * H; ++k) {
      for (long i = 0; i < wide && n + i < H; ++i) panels[n * 4 * H + k * wide + i] = from_state[k * H + n + i];
    }
  }
  for (long b = 0; b < B; ++b) {
    for (long u = 0; u < H; ++u) {
      dh[b * H + u] = slope_h(b, u);
      dc[b * H + u] = slope_c(b, u);
    }
  }
  const float *const cells = work + T * B * 4 * H, *const tanhs = cells + T * B * H;
  for (long t = T - 1; t >= 0; --t) {
    float* const gates = work + t * B * 4 * H;
    const float* const before = t == 0 ? first_c : cells + (t - 1) * B * H;
    for (long b = 0; b < B; ++b) {
      float* const of = gates + b * 4 * H;
      LOOP (long u = 0; u < H; ++u) {
        const float in = of[u], keep = of[H + u], cell = of[2 * H + u], out = of[3 * H + u];
        const float shown = tanhs[(t * B + b) * H + u], to_h = dh[b * H + u] + slope(t, b, u);
        const float to_c = dc[b * H + u] + to_h * out * (1 - shown * shown);
        of[u] = to_c * cell * in * (1 - in);
        of[H + u] = to_c * before[b * H + u] * keep * (1 - keep);
        of[2 * H + u] = to_c * in * (1 - cell * cell);
        of[3 * H + u] = to_h * shown * out * (1 - out);
        dc[b * H + u] = to_c * keep;
      }
    }
    for (long n = 0; n < last; n += wide) {
      columns<2, lanes, B, 4 * H, 4 * H, 1, wide, H, 0>(dh + n, gates, panels + n * 4 * H, nullptr);
    }
    constexpr long left = H - last;
    columns<(left > lanes) + 1, left - (left > lanes) * lanes, B, 4 * H, 4 * H, 1, wide, H, 0>(
        dh + last, gates, panels + last * 4 * H, nullptr);
  }
  if (dh_first) __builtin_memcpy(dh_first, dh, sizeof dh);
  if (dc_first) __builtin_memcpy(dc_first, dc, sizeof dc);
  if (dx) large_product<T * B, I, 4 * H, 4 * H, 1, I, 1, I, 0>(dx, work, to_gates, nullptr);
  if (d_to_gates) large_product<4 * H, I, T * B, 1, 4 * H, I, 1, I, 0>(d_to_gates, work, x, nullptr);
  if (d_from_state) {
    large_product<4 * H, H, B, 1, 4 * H, H, 1, H, 0>(d_from_state, work, first_h, nullptr);
    if constexpr (T > 1) {
      large_product<4 * H, H, (T - 1) * B, 1, 4 * H, H, 1, H, H>(d_from_state, work + B * 4 * H, y, d_from_state);
    }
  }
  for (long u = 0; u < 4 * H; ++u) parts[u] = 0;
  for (long r = 0; r < T * B; ++r) {
    LOOP (long u = 0; u < 4 * H; ++u) parts[u] += work[r * 4 * H + u];
  }
  if (d_bias) __builtin_memcpy(d_bias, parts, sizeof parts);
  if (d_bias2) __builtin_memcpy(d_bias2, parts, sizeof parts);
}

)head";

}  // namespace vernier::compile
