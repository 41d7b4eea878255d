// adamw: Adam with decoupled weight decay, in one fused pass, with the numbers of torch.optim.AdamW(fused=True).
// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
//   learning_rate = 0.001
//   weight_decay = 0.01
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   amsgrad = false
//   state = "float32"  of the two averages: float32 (the dtype of the weights, as in PyTorch), bf16 (with stochastic
//                      rounding, Gupta et al., ICML 2015), 8bit (block-wise quantised, Dettmers et al., ICLR 2022)
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []         [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.001, group.weight_decay = 0.01, group.beta1 = 0.9,
//     group.beta2 = 0.999   as above, for these parameters
#include "adam_plugin.h"

VERNIER_PLUGIN(AdamPlugin<vernier::AdamWOptions>, "adamw", "1.2.0")
