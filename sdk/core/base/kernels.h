// Finds the functions that are compiled for several instruction sets. A table has the functions of one purpose, and
// kernels.inc lists the sets for which it is compiled.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "processor.h"

namespace vernier {

// The table that is compiled for a set. Call this only for a line of kernels.inc.
template <Instructions set, class Table>
const Table& kernels_for();

template <Instructions set, class Table>
constexpr bool has_kernels_for = false;

// Calls visit(set, table) for each table that this processor can run, the fastest first.
template <class Table, class Visit>
void each_table(const Visit& visit) {
  const auto take = [&]<Instructions set>() {
    if constexpr (has_kernels_for<set, Table>) {
      if (has(set)) visit(set, kernels_for<set, Table>());
    }
  };
  take.template operator()<Instructions::avx512_bf16>();
  take.template operator()<Instructions::avx512>();
  take.template operator()<Instructions::avx2>();
  take.template operator()<Instructions::plain>();
}

// The fastest table, or nullptr if this processor can run none.
template <class Table>
const Table* best_kernels() {
  static const Table* const best = [] {
    const Table* first = nullptr;
    each_table<Table>([&](Instructions, const Table& table) { first = first == nullptr ? &table : first; });
    return first;
  }();
  return best;
}

// The macro KERNELS of kernels.inc, for a header that declares a library's tables.
#define VERNIER_DECLARE_KERNELS(set, ...)                                       \
  template <>                                                                   \
  inline constexpr bool has_kernels_for<Instructions::set, __VA_ARGS__> = true; \
  template <>                                                                   \
  const __VA_ARGS__& kernels_for<Instructions::set, __VA_ARGS__>();

// For a file that is compiled for a set: the functions of a table.
#define VERNIER_DEFINE_KERNELS(set, table, ...)        \
  template <>                                          \
  const __VA_ARGS__& kernels_for<set, __VA_ARGS__>() { \
    return table;                                      \
  }

template <class Element>
struct RowKernels;
template <class Element>
struct ActivationKernels;
template <class Element, class Product>
struct AttentionKernels;
template <class Bits>
struct RandomKernels;
struct PoolKernels;
struct AdamKernels;
struct CodeKernels;
struct ElementKernels;
struct SquareKernels;
#define KERNELS VERNIER_DECLARE_KERNELS
#include "kernels.inc"
#undef KERNELS

}  // namespace vernier
