// adam: Adam, whose weight decay is added to the gradient, in one fused pass, with the numbers of
// torch.optim.Adam(fused=True). Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
//   weight_decay = 0, and those of adam_plugin.h
#include "adam_plugin.h"

VERNIER_PLUGIN(AdamPlugin<vernier::AdamOptions>, "adam", "1.0.0")
