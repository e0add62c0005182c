// Lookups of ids that are in order of their cells, by kernels that are each made for a width: plain
// C++17 with the vector types of GCC and Clang.
//
// It sums as sums.h does, in the same order: element i is ((0 + x1[i]) + x2[i]) + ... A cell's sum
// stays in registers and is written once. Compile as rules/rule.h says.

#ifndef TF2_ENGINE_NATIVE_HOST_BAGS_H_
#define TF2_ENGINE_NATIVE_HOST_BAGS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "host/rows.h"

namespace estimator_bridge {

#ifdef __AVX512F__
constexpr int kWideLanes = 16;
#else
constexpr int kWideLanes = 8;
#endif
typedef float WideLanes __attribute__((vector_size(kWideLanes * sizeof(float))));

// Returns how many ids lie between the row that is read and the one that is asked for: as many
// bytes for every width, since a core waits for so many cache lines at a time.
constexpr int64_t LookupAhead(int64_t dim) {
  constexpr int64_t kBytes = 4096, kLeast = 4, kMost = 64;
  return std::min(std::max(kBytes / (dim * static_cast<int64_t>(sizeof(float))), kLeast), kMost);
}

// The ids of some cells, all of which are rows of `table`, a table of one shard.
struct Bags {
  const float* table;
  const int64_t* ids;
  const int64_t* splits;  // null: cell i has id i alone
  const float* gain;      // of each cell; null: ones
  float* out;             // of cell 0
  int64_t end;            // of the ids that may be asked for

  int64_t First(int64_t cell) const { return splits == nullptr ? cell : splits[cell]; }
};

// Writes the sums of the cells from `first` to `last`; a cell without ids is zero.
template <int kDim, bool kGains, bool kSingle>
inline void SumBags(const Bags& bags, int64_t first, int64_t last) {
  constexpr int kVectors = kDim / kWideLanes;
  constexpr int64_t kAhead = LookupAhead(kDim);
  static_assert(kVectors * kWideLanes == kDim, "a width is a multiple of the lanes");
  int64_t k = bags.First(first);
  for (int64_t cell = first; cell < last; ++cell) {
    const int64_t end = kSingle ? cell + 1 : bags.splits[cell + 1];
    WideLanes total[kVectors] = {};
    for (; k < end; ++k) {
      if (k + kAhead < bags.end) Prefetch<false>(bags.table + bags.ids[k + kAhead] * kDim, kDim);
      const float* row = bags.table + bags.ids[k] * kDim;
      for (int v = 0; v < kVectors; ++v) {
        WideLanes lanes;
        std::memcpy(&lanes, row + v * kWideLanes, sizeof(lanes));
        total[v] += kGains ? bags.gain[cell] * lanes : lanes;
      }
    }
    std::memcpy(bags.out + cell * kDim, total, sizeof(total));
  }
}

// Does the same for a width that has a kernel; returns whether it has.
inline bool SumBagsOfWidth(int64_t dim, const Bags& bags, int64_t first, int64_t last) {
  const auto run = [&](auto kernels) {
    constexpr int kDim = decltype(kernels)::value;
    if (bags.splits == nullptr) {
      SumBags<kDim, false, true>(bags, first, last);
    } else if (bags.gain == nullptr) {
      SumBags<kDim, false, false>(bags, first, last);
    } else {
      SumBags<kDim, true, false>(bags, first, last);
    }
    return true;
  };
  switch (dim) {
    case 16: return run(std::integral_constant<int, 16>());
    case 32: return run(std::integral_constant<int, 32>());
    case 64: return run(std::integral_constant<int, 64>());
    case 128: return run(std::integral_constant<int, 128>());
    default: return false;
  }
}

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_HOST_BAGS_H_
