// Copies many tensors at once, for code that keeps or restores a State. Any thread may call these functions.
#pragma once

#include <vernier/state.h>

#include <optional>
#include <vector>

namespace vernier {

// Uninitialised contiguous CPU tensors with the names, dtypes and shapes of others, in one block of huge pages. Leaves
// out undefined tensors and tensors that are not dense.
VERNIER_API Tensors empty_on_cpu(const Tensors& like);

// Returns the state with a copy of each tensor, which stays as it is while a plugin goes on in the memory of the first.
VERNIER_API State clone_of(State state);

struct Copied {
  torch::Tensor to, from;
};
// to.copy_(from) for each. Contiguous CPU tensors of one dtype are copied with non-temporal stores, which take half of
// the time and keep the content of the caches. Use it for data that nobody reads soon. The default for `threads` is
// at::get_num_threads().
VERNIER_API void copy_non_temporal(const std::vector<Copied>& all, std::optional<int> threads = {});

// Puts saved values into the live tensors of the same names, as copy_ does. Throws Error if a name is missing in
// `saved`. Memory that only `saved` holds is exchanged instead of copied: call it with std::move on the result of
// read_checkpoint. Tensors that share the storage of a live tensor see the saved values. Raw pointers from before the
// call do not.
VERNIER_API void move_into(const Tensors& live, Tensors saved);

}  // namespace vernier
