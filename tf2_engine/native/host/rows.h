// Grouping occurrences by row: plain C++17, no TensorFlow. For compiler flags see rules/rule.h.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "host/gains.h"

namespace estimator_bridge {

// Reads the name of a combiner. Returns false if the name is unknown.
inline bool ReadCombiner(const std::string& name, Combiner* combiner) {
  *combiner = name == "mean" ? Combiner::kMean : name == "sqrtn" ? Combiner::kSqrtn : Combiner::kSum;
  return *combiner != Combiner::kSum || name == "sum";
}

// The ids of a feature on a core, in host memory, or in GPU memory if the batch is on the GPU.
struct OccurrenceArrays {
  const int64_t* ids = nullptr;
  const int64_t* cell = nullptr;    // the cell of each id, or null
  const int64_t* splits = nullptr;  // row splits, or null
  int64_t num_splits = 0;
  const float* gain = nullptr;  // the gain of each id, or of each cell if there are splits; or null
  int64_t count = 0;
};

// Prefetches a row of `dim` floats, for reading or also for writing. Invalid addresses do no harm.
// This function, and callers that only call it, must be inlined: GCC treats a function that only
// prefetches as free of side effects, and drops calls to it.
template <bool kWrite>
__attribute__((always_inline)) inline void Prefetch(const float* row, int64_t dim) {
  constexpr int64_t kLine = 16;  // floats of a cache line
  constexpr int64_t kMost = 16 * kLine;  // the hardware prefetches the rest
  for (int64_t i = 0; i < dim && i < kMost; i += kLine) {
    __builtin_prefetch(row + i, kWrite ? 1 : 0, 3);
  }
}

// Occurrences of one table, sorted by row. Within a row they keep their order. Each occurrence has
// an id and a companion, which is any other number.
//
//   Grouping grouping;
//   grouping.Reset(rows, count, limit);  // ids are below `rows`, companions are below `limit`
//   if (!grouping.ok()) ...              // too large to be packed; no machine has so much memory
//   for (i = 0; i < count; ++i) grouping.Set(i, id of occurrence i, its companion);
//   grouping.Sort();
//   grouping.id(k), grouping.with(k)     // the k-th id and companion; also of grouping.sorted()
//   grouping.sorted().first(r)           // the index of the first id of the r-th distinct row
//
// A row and its companion share one 64-bit word. A radix sort uses only the bits of the row, so it
// is stable, and the result does not depend on threads or hashes. `Reset` keeps the memory.
struct Sorted {
  int64_t id(int64_t k) const { return static_cast<int64_t>(words[k] >> with_bits); }
  int64_t with(int64_t k) const { return static_cast<int64_t>(words[k] & mask); }
  // The occurrences of row r are first(r) to first(r + 1).
  int64_t first(int64_t r) const { return firsts[r]; }

  const uint64_t* words;
  int with_bits;
  uint64_t mask;
  const int64_t* firsts;
  int64_t num_rows;
};

class Grouping {
 public:
  void Reset(int64_t rows, int64_t count, int64_t limit) {
    with_bits_ = Bits(limit);
    row_bits_ = Bits(rows);
    mask_ = (uint64_t{1} << with_bits_) - 1;
    ok_ = with_bits_ < 63 && with_bits_ + row_bits_ <= 64 &&
          count <= std::numeric_limits<uint32_t>::max();
    if (ok_) {
      words_.resize(static_cast<size_t>(count));
      other_.resize(static_cast<size_t>(count));
    }
  }

  bool ok() const { return ok_; }

  void Set(int64_t occurrence, int64_t id, int64_t with) {
    words_[static_cast<size_t>(occurrence)] =
        static_cast<uint64_t>(id) << with_bits_ | static_cast<uint64_t>(with);
  }
  // The sorted occurrences, until the next `Reset`. Loops copy it to keep it in registers.
  Sorted sorted() const {
    return {words_.data(), with_bits_, mask_, firsts_.data(), num_rows_};
  }
  int64_t id(int64_t k) const { return sorted().id(k); }
  int64_t with(int64_t k) const { return sorted().with(k); }

  void Sort() {
    // Uses the fewest passes with digits of up to 11 bits, and the smallest digits for this number
    // of passes.
    const int passes = (row_bits_ + kMostDigitBits - 1) / kMostDigitBits;
    const int digit = passes == 0 ? 0 : (row_bits_ + passes - 1) / passes;
    counts_.assign(static_cast<size_t>(passes) << digit, 0);
    switch (passes) {
      case 1: Count<1>(passes, digit); break;
      case 2: Count<2>(passes, digit); break;
      default: Count<0>(passes, digit);
    }
    for (int pass = 0; pass < passes; ++pass) Pass(pass, digit);
    FindRows();
  }

 private:
  static constexpr int kMostDigitBits = 11;

  // The number of bits of numbers below `limit`.
  static int Bits(int64_t limit) {
    int bits = 0;
    while (bits < 63 && (int64_t{1} << bits) < limit) ++bits;
    return bits;
  }

  // Counts the values of each digit. There are `kPasses` digits, or any number if that is 0.
  template <int kPasses>
  void Count(int any_passes, int digit) {
    const int passes = kPasses > 0 ? kPasses : any_passes, with_bits = with_bits_;
    const uint64_t mask = (uint64_t{1} << digit) - 1;
    uint32_t* const counts = counts_.data();
    for (const uint64_t word : words_) {
      const uint64_t row = word >> with_bits;
      for (int pass = 0; pass < passes; ++pass) {
        ++counts[static_cast<size_t>(pass) << digit | (row >> (pass * digit) & mask)];
      }
    }
  }

  void Pass(int pass, int digit) {
    const uint64_t mask = (uint64_t{1} << digit) - 1;
    const int shift = with_bits_ + pass * digit;
    uint32_t* const next = counts_.data() + (static_cast<size_t>(pass) << digit);
    uint32_t before = 0;
    for (uint64_t value = 0; value <= mask; ++value) before += std::exchange(next[value], before);
    uint64_t* const to = other_.data();
    for (const uint64_t word : words_) to[next[word >> shift & mask]++] = word;
    words_.swap(other_);
  }

  // No branch depends on the ids, because repetitions cannot be predicted.
  void FindRows() {
    const int64_t count = static_cast<int64_t>(words_.size());
    firsts_.resize(words_.size() + 1);
    int64_t* firsts = firsts_.data();
    const Sorted order = sorted();
    int64_t rows = 0;
    firsts[0] = 0;
    for (int64_t k = 1; k <= count; ++k) {
      // Overwritten until the row ends.
      firsts[rows + 1] = k;
      rows += k == count || order.id(k) != order.id(k - 1);
    }
    num_rows_ = rows;
  }

  std::vector<uint64_t> words_, other_;
  std::vector<uint32_t> counts_;
  std::vector<int64_t> firsts_;
  int64_t num_rows_ = 0;
  bool ok_ = true;
  int with_bits_ = 0;
  int row_bits_ = 0;
  uint64_t mask_ = 0;
};

}  // namespace estimator_bridge
