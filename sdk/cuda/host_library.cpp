// The library's sources compiled for the host: the same table, whose kernels run on the CPU and whose pointers are the
// host's. Tests compare it with the kernels of core.
#include "float8.cu"
#include "inspect.cu"
#include "library.cu"
#include "norms.cu"
#include "optimizers.cu"
#include "products.cu"
#include "rounding.cu"
#include "softmax.cu"
