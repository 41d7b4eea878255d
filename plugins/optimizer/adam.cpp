// adam: Adam, whose weight decay is added to the gradient, in one fused pass, with the numbers of
// torch.optim.Adam(fused=True). Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
//   learning_rate = 0.001
//   weight_decay = 0
//   beta1 = 0.9, beta2 = 0.999, eps = 1e-8
//   amsgrad = false
//   state = "float32"  of the two averages, as in optimizer/adamw: float32, bf16 or 8bit
//   layer_decay = 1.0   factor of the last layer's learning rate; each layer below it has it once more
//   in_backward = false   uses and frees each gradient in backward
//   group = []         [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update
//     group.learning_rate = 0.001, group.weight_decay = 0, group.beta1 = 0.9,
//     group.beta2 = 0.999   as above, for these parameters
#include "adam_plugin.h"

VERNIER_PLUGIN(AdamPlugin<vernier::AdamOptions>, "adam", "1.0.0")
