// zero1: trains as distributed/ddp does, with the same bits, and shards what the optimizer keeps. Each parameter has a
// rank that owns it. That rank alone updates it, keeps its state and its float32 master, and sends its new value to the
// others. Parameters are dealt out whole, the largest first, each to the rank that has the fewest elements so far.
// Engine and options are those of distributed/ddp; `bucket` holds for the new values too.
// Source: S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020,
// stage 1.
#include "../ddp/data_parallel.h"

class Zero1 final : public ddp::DataParallel {
 public:
  explicit Zero1(vernier::Options& options) : DataParallel(options) {}
  bool shards_optimizer() const override { return true; }
};

VERNIER_PLUGIN(Zero1, "zero1", "1.0.0")
