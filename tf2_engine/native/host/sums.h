// Sums of rows that are kept in registers: plain C++17 with the vector types of GCC and Clang.
//
// A row is multiplied by its gain, then products are summed in order of occurrence: the order in
// which batch.py and backends/host/update.py round. Element i of the result is
// ((0 + x1[i]) + x2[i]) + ..., whatever the width of a vector is. Compile as rules/rule.h says.

#ifndef TF2_ENGINE_NATIVE_HOST_SUMS_H_
#define TF2_ENGINE_NATIVE_HOST_SUMS_H_

#include <cstdint>
#include <cstring>

namespace estimator_bridge {

constexpr int64_t kLanes = 8;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes LoadLanes(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
inline void StoreLanes(const Lanes& lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

// Sums kVectors * kLanes columns. `Terms` has
//   const float* Row(int64_t k)   the k-th row
//   void Ask(int64_t k)           asks for a row that comes later than the k-th
//   float Gain(int64_t k)         by what it is multiplied
//   static constexpr bool kGains  false: by nothing
template <int kVectors, class Terms>
inline void SumColumns(const Terms& terms, int64_t begin, int64_t end, int64_t column, bool fresh,
                       float* sum) {
  Lanes total[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    total[v] = fresh ? Lanes{} : LoadLanes(sum + column + v * kLanes);
  }
  for (int64_t k = begin; k < end; ++k) {
    if (column == 0) terms.Ask(k);
    const float* row = terms.Row(k) + column;
    if (Terms::kGains) {
      const float gain = terms.Gain(k);
      for (int v = 0; v < kVectors; ++v) total[v] += gain * LoadLanes(row + v * kLanes);
    } else {
      for (int v = 0; v < kVectors; ++v) total[v] += LoadLanes(row + v * kLanes);
    }
  }
  for (int v = 0; v < kVectors; ++v) StoreLanes(total[v], sum + column + v * kLanes);
}

// sum = (fresh ? 0 : sum) + the terms from `begin` to `end`; `dim` columns.
template <class Terms>
inline void SumRows(const Terms& terms, int64_t begin, int64_t end, int64_t dim, bool fresh,
                    float* sum) {
  int64_t column = 0;
  for (; dim - column >= 8 * kLanes; column += 8 * kLanes) {
    SumColumns<8>(terms, begin, end, column, fresh, sum);
  }
  if (dim - column >= 4 * kLanes) {
    SumColumns<4>(terms, begin, end, column, fresh, sum);
    column += 4 * kLanes;
  }
  if (dim - column >= 2 * kLanes) {
    SumColumns<2>(terms, begin, end, column, fresh, sum);
    column += 2 * kLanes;
  }
  if (dim - column >= kLanes) {
    SumColumns<1>(terms, begin, end, column, fresh, sum);
    column += kLanes;
  }
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

#endif  // TF2_ENGINE_NATIVE_HOST_SUMS_H_
