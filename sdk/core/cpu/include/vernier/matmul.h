// Chooses the code of Intel's MKL that multiplies matrices on a CPU. LibTorch's float32 products are MKL's, and MKL
// takes a generic path on processors of other makers. Its path for Intel's processors runs on AMD's with AVX2 or
// AVX-512 too. There it is up to twice as fast, also in vector mathematics (pytorch/builder#1245).
#pragma once

#include <c10/core/ScalarType.h>
#include <vernier/abi.h>

#include <string>

namespace vernier {

// plain: MKL's own choice, and so the bits of plain LibTorch. intel: the path for Intel's processors.
enum class MatmulPath { plain, intel };

struct MatmulChoice {
  MatmulPath path = MatmulPath::plain;
  std::string reason;  // "AMD with AVX-512: MKL's path for Intel is faster"
};

// Chooses the path for this process. wanted: "plain", "intel", or "auto": `intel` on AMD's processors with AVX-512,
// else `plain`. So the choice depends on the processor alone. Call it on the main thread before the first product,
// because MKL chooses once: afterwards "auto" returns what MKL has chosen, and another path is refused. A product is
// compared with a plain loop before the function returns. Throws Error: Kind::configuration for another word, for a
// path that cannot be had any more, or if LibTorch does not ask for it (it was built without MKL, or the program links
// LibTorch before vernier::sdk); Kind::training if the comparison fails.
VERNIER_API MatmulChoice use_matmul(const std::string& wanted = "auto");

// The path of this process: "plain" or "intel".
VERNIER_API const char* matmul_path();

// Returns true if products of float16 or bfloat16 are multiplied in float32, and rounded once: where LibTorch has no
// fast ones on this processor, fused_kernels() is true, and use_matmul("plain") was not asked for.
VERNIER_API bool multiplies_in_float32(c10::ScalarType dtype);

}  // namespace vernier
