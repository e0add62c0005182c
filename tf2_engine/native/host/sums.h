// Sums of rows that are kept in registers: plain C++17 with the vector types of GCC and Clang.
//
// A row is multiplied by its gain, then products are summed in order of occurrence. batch.py and
// backends/host/update.py round in the same order. Element i of the result is
// ((0 + x1[i]) + x2[i]) + ..., whatever the width of a vector is. Compile as rules/rule.h says.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace estimator_bridge {

template <int64_t kCount>
struct Vector {
  typedef float Lanes __attribute__((vector_size(kCount * sizeof(float))));
  static constexpr int64_t kLanes = kCount;

  static Lanes Load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
  static void Store(const Lanes& lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }
};
using Narrow = Vector<8>;
#ifdef __AVX512F__
using Wide = Vector<16>;
#else
using Wide = Vector<8>;
#endif

// Calls `visit` with the width of a table's rows as a constant if there are kernels for the width,
// else with 0. Returns the result.
template <class Visit>
inline auto WithWidth(int64_t dim, const Visit& visit) {
  switch (dim) {
    case 16: return visit(std::integral_constant<int64_t, 16>());
    case 32: return visit(std::integral_constant<int64_t, 32>());
    case 64: return visit(std::integral_constant<int64_t, 64>());
    case 128: return visit(std::integral_constant<int64_t, 128>());
    default: return visit(std::integral_constant<int64_t, 0>());
  }
}

// Sums columns that fill kVectors vectors. `Terms` has
//   const float* Row(int64_t k)   the k-th row
//   void Ask(int64_t k)           prefetches a row some places after the k-th
//   float Gain(int64_t k)         the factor of the k-th row
//   static constexpr bool kGains  false: there are no factors
template <class Of, int kVectors, class Terms>
__attribute__((always_inline)) inline void SumColumns(Terms& terms, int64_t begin,
                                                      int64_t end, int64_t column, bool fresh,
                                                      float* sum) {
  typename Of::Lanes total[kVectors] = {};
  if (!fresh) {
    for (int v = 0; v < kVectors; ++v) total[v] = Of::Load(sum + column + v * Of::kLanes);
  }
  for (int64_t k = begin; k < end; ++k) {
    if (column == 0) terms.Ask(k);
    const float* row = terms.Row(k) + column;
    if (Terms::kGains) {
      const float gain = terms.Gain(k);
      for (int v = 0; v < kVectors; ++v) total[v] += gain * Of::Load(row + v * Of::kLanes);
    } else {
      for (int v = 0; v < kVectors; ++v) total[v] += Of::Load(row + v * Of::kLanes);
    }
  }
  for (int v = 0; v < kVectors; ++v) Of::Store(total[v], sum + column + v * Of::kLanes);
}

// sum = (fresh ? 0 : sum) + the terms from `begin` to `end`; `dim` columns. If `dim` is a constant,
// only the code for that width remains.
template <class Terms>
__attribute__((always_inline)) inline void SumRows(Terms& terms, int64_t begin, int64_t end,
                                                   int64_t dim, bool fresh, float* sum) {
  int64_t column = 0;
  const auto of = [&](auto vector, auto count) {
    using Of = decltype(vector);
    constexpr int kVectors = decltype(count)::value;
    SumColumns<Of, kVectors>(terms, begin, end, column, fresh, sum);
    column += kVectors * Of::kLanes;
  };
  while (dim - column >= 8 * Wide::kLanes) of(Wide(), std::integral_constant<int, 8>());
  if (dim - column >= 4 * Wide::kLanes) of(Wide(), std::integral_constant<int, 4>());
  if (dim - column >= 2 * Wide::kLanes) of(Wide(), std::integral_constant<int, 2>());
  if (dim - column >= Wide::kLanes) of(Wide(), std::integral_constant<int, 1>());
  if (dim - column >= Narrow::kLanes) of(Narrow(), std::integral_constant<int, 1>());
  if (column == dim) return;
  if (fresh) std::memset(sum + column, 0, static_cast<size_t>(dim - column) * sizeof(float));
  for (int64_t k = begin; k < end; ++k) {
    if (column == 0) terms.Ask(k);
    const float* row = terms.Row(k);
    const float gain = Terms::kGains ? terms.Gain(k) : 1.0f;
    for (int64_t i = column; i < dim; ++i) sum[i] += Terms::kGains ? gain * row[i] : row[i];
  }
}

}  // namespace estimator_bridge
