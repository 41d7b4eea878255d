// ddp: several processes train one model, each on its share of every batch, and sum their gradients. The batch is split
// over the ranks first, and then into micro-batches; task.batch_size stays that of the update, whatever the number of
// ranks. Gradients are the mean over all samples, or tokens, of all ranks. A process gets its rank from `vernier
// launch`, torchrun, Slurm or MPI (vernier/launch_place.h); without one of them it trains alone. Engine: c10d with Gloo
// on the CPU, with NCCL on GPUs.
//
//   timeout = 120          one whose connection breaks is lost at once
//   port = 0, address = "", interface = "": "eth1"; compress = "none", bucket = "8MB", overlap = false,
//   shared_memory = true: instead of Gloo
//
// Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020. The mean is
// weighted here; DistributedDataParallel takes that of equal shares.
#include "data_parallel.h"

VERNIER_PLUGIN(ddp::DataParallel, "ddp", "1.1.0")
