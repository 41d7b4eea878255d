// zero1: trains as distributed/ddp does, with the same bits, and shards what the optimizer keeps. Each parameter has a
// rank that owns it. That rank alone updates it, keeps its state and its float32 master, and sends its new value to the
// others. Parameters are dealt out whole, the largest first, each to the rank that has the fewest elements so far.
// Engine and options are those of distributed/ddp; `bucket` holds for the new values too.
//
//   timeout = 120          seconds in which a rank must come, and answer; one whose connection breaks is lost at once
//   port = 0               where rank 0 listens; 0: as the launcher says, else 29500
//   address = ""           of the machine with rank 0; "": as the launcher says
//   interface = ""         of the network, as "eth1"; "": the one that leads to rank 0
//   compress = "none"      bf16 | fp16: the dtype in which float32 gradients are sent and summed
//   message = {}           {use = "one_bit"}: a quantizer that rounds what a rank sends; the sum itself is exact
//   error_feedback = true  a rank adds to its next gradient what rounding of the message lost
//   bucket = "8MB"         largest piece in which small tensors are sent together: gradients below 1 MB, or weights
//   overlap = false        true: gradients are summed while backward computes others; pays on a slow network
//   shared_memory = true   ranks of one machine sum through memory that they share, instead of Gloo
//
// Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020,
// stage 1.
#include "../ddp/data_parallel.h"

class Zero1 final : public ddp::DataParallel {
 public:
  explicit Zero1(vernier::Options& options) : DataParallel(options) {}
  bool shards_optimizer() const override { return true; }
};

VERNIER_PLUGIN(Zero1, "zero1", "1.0.0")
