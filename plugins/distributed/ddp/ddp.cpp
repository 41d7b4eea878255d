// ddp: several processes train one model, each on its share of every batch, and sum their gradients. The batch is split
// over the ranks first, and then into micro-batches; task.batch_size stays that of the update, whatever the number of
// ranks. Gradients are the mean over all samples, or tokens, of all ranks. A process gets its rank from `vernier
// launch`, torchrun, Slurm or MPI (vernier/launch_place.h); without one of them it trains alone. Engine: c10d with Gloo
// on the CPU, with NCCL on GPUs.
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
// Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020. The mean is
// weighted here; DistributedDataParallel takes that of equal shares.
#include "data_parallel.h"

VERNIER_PLUGIN(ddp::DataParallel, "ddp", "1.1.0")
