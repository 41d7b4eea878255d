#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/autocast.h>
#include <vernier/error.h>

namespace vernier {

namespace {
// float32 is harmless and lets a dtype be an option; anything else would fail far away, inside an operator.
void require_castable(c10::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat) return;
  throw Error(c10::str("autocast computes in Half, BFloat16 or Float, not in ", dtype), Error::Kind::configuration);
}
}  // namespace

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled, bool cache)
    : device_(device),
      dtype_before_(at::autocast::get_autocast_dtype(device)),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      cache_before_(at::autocast::is_autocast_cache_enabled()) {
  if (enabled) require_castable(dtype);
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(cache);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace vernier
