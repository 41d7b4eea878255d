// Copies of many tensors at once, for who keeps or restores a State.
#pragma once

#include <vernier/state.h>

#include <optional>
#include <vector>

namespace vernier {

// Tensors on the CPU with the names, dtypes and shapes of others, contiguous and not yet written, in one piece of
// memory with large pages where the system has them. Tensors that are undefined or not dense are left out.
VERNIER_API Tensors empty_on_cpu(const Tensors& like);

// to.copy_(from) for each. Contiguous tensors of one dtype on the CPU go past the caches, which takes half of the time
// and leaves in them what was there: for what nobody reads soon. Takes as many threads as LibTorch has been given, or
// `threads`.
struct Copied {
  torch::Tensor to, from;
};
VERNIER_API void copy_past_caches(const std::vector<Copied>& all, std::optional<int> threads = {});

// Puts saved values into the live tensors of the same names, as copy_ does; each must be among the saved. Memory that
// nobody but `saved` holds changes hands instead of being copied: after read_checkpoint, where the State or the Tensors
// are moved in here. The live tensor, and all that share its storage, then see the saved values; a pointer to its bytes
// from before does not.
VERNIER_API void move_into(const Tensors& live, Tensors saved);

}  // namespace vernier
