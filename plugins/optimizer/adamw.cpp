// adamw: Adam with decoupled weight decay, in one fused pass, with the numbers of torch.optim.AdamW(fused=True).
// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
//   weight_decay = 0.01, and those of adam_plugin.h
#include "adam_plugin.h"

VERNIER_PLUGIN(AdamPlugin<vernier::AdamWOptions>, "adamw", "1.2.0")
