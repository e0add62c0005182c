// Gains, and the grouping of occurrences by row: plain C++17, no TensorFlow. Compile as
// rules/rule.h says.

#ifndef TF2_ENGINE_NATIVE_HOST_ROWS_H_
#define TF2_ENGINE_NATIVE_HOST_ROWS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace estimator_bridge {

enum class Combiner { kSum, kMean, kSqrtn };

// Returns what an occurrence of a weight adds to its cell's sum, from which `GainScale` is.
inline float GainTerm(Combiner combiner, float weight) {
  return combiner == Combiner::kSqrtn ? weight * weight : weight;
}

// Returns by what the weights of a cell are multiplied to give their gains; 0 where the
// denominator is 0. `sum` is that of the cell's terms; of no meaning for kSum.
inline float GainScale(Combiner combiner, float sum) {
  if (combiner == Combiner::kSum) return 1.0f;
  const float denominator = combiner == Combiner::kSqrtn ? std::sqrt(sum) : sum;
  return denominator == 0.0f ? 0.0f : 1.0f / denominator;
}

// Asks for a row of `dim` floats to be brought near, to be read only or to be written as well.
// Any address will do: an invalid one is passed over. Always inlined, and so must be what calls it
// for nothing else: GCC takes a function that only prefetches for one without effects, and drops
// its calls.
template <bool kWrite>
__attribute__((always_inline)) inline void Prefetch(const float* row, int64_t dim) {
  constexpr int64_t kLine = 16;  // floats of a cache line
  constexpr int64_t kMost = 16 * kLine;  // the hardware brings what follows
  for (int64_t i = 0; i < dim && i < kMost; i += kLine) {
    __builtin_prefetch(row + i, kWrite ? 1 : 0, 3);
  }
}

// Occurrences of one table, in order of their rows and, within a row, of their occurrence.
//
//   Grouping grouping;
//   grouping.Reset(rows, count, limit);  // ids are below `rows`, what comes with them below `limit`
//   if (!grouping.ok()) ...              // too large to be packed; does not happen in memory
//   for (i = 0; i < count; ++i) grouping.Set(i, id of occurrence i, what comes with it);
//   grouping.Sort();
//   grouping.id(k), grouping.with(k)     // the k-th in order; also of grouping.sorted()
//
// Row and what comes with it share one 64-bit word; a radix sort goes over the bits of the row
// alone, so that it is stable: the result does not depend on threads or hashes. `Reset` keeps the
// memory.
struct Sorted {
  int64_t id(int64_t k) const { return static_cast<int64_t>(words[k] >> with_bits); }
  int64_t with(int64_t k) const { return static_cast<int64_t>(words[k] & mask); }

  const uint64_t* words;
  int with_bits;
  uint64_t mask;
};

class Grouping {
 public:
  void Reset(int64_t rows, int64_t count, int64_t limit) {
    with_bits_ = Bits(limit);
    row_bits_ = Bits(rows);
    mask_ = (uint64_t{1} << with_bits_) - 1;
    if (ok()) {
      words_.resize(static_cast<size_t>(count));
      other_.resize(static_cast<size_t>(count));
    }
  }

  bool ok() const { return with_bits_ < 63 && with_bits_ + row_bits_ <= 64; }

  void Set(int64_t occurrence, int64_t id, int64_t with) {
    words_[static_cast<size_t>(occurrence)] =
        static_cast<uint64_t>(id) << with_bits_ | static_cast<uint64_t>(with);
  }
  // What is sorted, until the next `Reset`: a copy stays in registers, where loops want it.
  Sorted sorted() const { return {words_.data(), with_bits_, mask_}; }
  int64_t id(int64_t k) const { return sorted().id(k); }
  int64_t with(int64_t k) const { return sorted().with(k); }

  void Sort() {
    if (words_.size() < 2) return;
    // As few passes as digits of 11 bits allow, with digits as small as these passes allow.
    const int passes = (row_bits_ + kMostDigitBits - 1) / kMostDigitBits;
    const int digit = passes == 0 ? 0 : (row_bits_ + passes - 1) / passes;
    for (int pass = 0; pass < passes; ++pass) {
      Pass(with_bits_ + pass * digit, digit);
      words_.swap(other_);
    }
  }

 private:
  static constexpr int kMostDigitBits = 11;

  // How many bits the numbers below `limit` take.
  static int Bits(int64_t limit) {
    int bits = 0;
    while (bits < 63 && (int64_t{1} << bits) < limit) ++bits;
    return bits;
  }

  void Pass(int shift, int digit) {
    const uint64_t mask = (uint64_t{1} << digit) - 1;
    size_t first[size_t{1} << kMostDigitBits] = {};
    for (const uint64_t word : words_) ++first[word >> shift & mask];
    size_t before = 0;
    for (size_t value = 0; value <= mask; ++value) {
      const size_t here = first[value];
      first[value] = before;
      before += here;
    }
    for (const uint64_t word : words_) other_[first[word >> shift & mask]++] = word;
  }

  std::vector<uint64_t> words_, other_;
  int with_bits_ = 0;
  int row_bits_ = 0;
  uint64_t mask_ = 0;
};

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_HOST_ROWS_H_
