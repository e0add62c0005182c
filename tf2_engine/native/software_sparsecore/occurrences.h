// Converts the ids of one feature on one core to triples of row, column and gain, in one list per
// SparseCore. This is not a kernel. Invalid inputs cause errors.

#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/rows.h"

namespace software_sparsecore {

using estimator_bridge::Combiner;

// More SparseCores than any machine has. Keeps products of sizes small.
constexpr int64_t kMostSparseCores = 1 << 16;

inline bool IsPowerOfTwo(int64_t number) { return number > 0 && (number & (number - 1)) == 0; }

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("Software SparseCore: ", parts...));
}

// The gain of one id in one sample. `row` counts the samples of the stack, SparseCore by
// SparseCore. `col` is the row of the stack; its low bits are the SparseCore that has it.
struct Triple {
  int32_t row, col;
  float gain;
};

// A feature, and the place of its table in the stack.
struct FeatureInStack {
  Combiner combiner = Combiner::kSum;
  int64_t samples = 0;        // samples of the feature, on one core
  int64_t stack_samples = 0;  // samples of all features of the stack, on one core
  int64_t row_offset = 0;     // samples of the stack's features before this one
  int64_t col_offset = 0;     // rows of the stack's tables before this one, over all SparseCores
  int64_t rotation = 0;       // by how many SparseCores the table is rotated
  int64_t sparse_cores = 1;   // SparseCores of one core
  int64_t shards = 1;         // SparseCores of all cores
  int64_t vocabulary = -1;    // rows of the table; negative: unknown, and ids are not checked
  std::string where;          // the table and the feature, in messages
};

inline absl::Status CheckFeature(const FeatureInStack& feature) {
  const int64_t cores = feature.sparse_cores;
  if (!IsPowerOfTwo(feature.shards) || feature.shards > kMostSparseCores) {
    return Refuse("num_sc_shards ", feature.shards,
                  " is not a power of two. Use 1, 2, 4, 8, ... cores.");
  }
  if (cores < 1 || cores > feature.shards) {
    return Refuse("num_sc_per_chip is ", cores, ", but there are ", feature.shards, " shards.");
  }
  if (feature.samples < 1 || feature.samples % cores != 0) {
    return Refuse("sample_count is ", feature.samples, ", but each of the ", cores,
                  " SparseCores of a core takes an equal part; the next number that fits is ",
                  (feature.samples / cores + 1) * cores, ".");
  }
  if (feature.row_offset < 0 || feature.row_offset % cores != 0 ||
      feature.stack_samples % cores != 0 ||
      feature.row_offset + feature.samples > feature.stack_samples ||
      feature.stack_samples > std::numeric_limits<int32_t>::max()) {
    return Refuse("row_offset ", feature.row_offset, " and sample_count ", feature.samples,
                  " do not fit stacked_table_sample_count ", feature.stack_samples, " on ", cores,
                  " SparseCores.");
  }
  return absl::OkStatus();
}

// The ids of a feature as they were enqueued: dense ids without an index, one per sample; ids with
// `indices` [count, 2]; or ids with `splits` [samples + 1].
struct FeatureIds {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  bool one_weight = false;  // whether all ids share one weight
  int64_t count = 0;
  const int32_t* indices = nullptr;
  const int32_t* splits = nullptr;
};

// Fills in the sample of each id, in ascending order.
inline absl::Status Samples(const FeatureInStack& feature, const FeatureIds& input,
                            std::vector<int32_t>* samples) {
  samples->resize(static_cast<size_t>(input.count));
  if (input.splits != nullptr) {
    if (input.splits[0] != 0 || input.splits[feature.samples] != input.count) {
      return Refuse("the row splits of ", feature.where, " go from ", input.splits[0], " to ",
                    input.splits[feature.samples], " for ", input.count, " ids.");
    }
    for (int64_t sample = 0; sample < feature.samples; ++sample) {
      if (input.splits[sample + 1] < input.splits[sample]) {
        return Refuse("the row splits of ", feature.where, " decrease after sample ", sample, ".");
      }
    }
    for (int64_t sample = 0; sample < feature.samples; ++sample) {
      for (int64_t i = input.splits[sample]; i < input.splits[sample + 1]; ++i) {
        (*samples)[static_cast<size_t>(i)] = static_cast<int32_t>(sample);
      }
    }
    return absl::OkStatus();
  }
  if (input.indices == nullptr) {
    if (input.count != 0 && input.count != feature.samples) {
      return Refuse("the number of dense ids of ", feature.where, " is ", input.count,
                    ", but there must be one id for each of the ", feature.samples,
                    " samples. Use a sparse or ragged tensor for several.");
    }
    for (int64_t i = 0; i < input.count; ++i) {
      (*samples)[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    }
    return absl::OkStatus();
  }
  int32_t before = 0;
  for (int64_t i = 0; i < input.count; ++i) {
    const int32_t sample = input.indices[2 * i];
    if (sample < 0 || sample >= feature.samples) {
      return Refuse("an index of ", feature.where, " is for sample ", sample, ", but there are ",
                    feature.samples, " samples.");
    }
    if (sample < before) {
      return Refuse("the indices of ", feature.where, " are not in order: sample ", sample,
                    " comes after ", before, ". Call tf.sparse.reorder.");
    }
    (*samples)[static_cast<size_t>(i)] = before = sample;
  }
  return absl::OkStatus();
}

inline absl::Status CheckIds(const FeatureInStack& feature, const FeatureIds& input) {
  if (feature.vocabulary < 0) return absl::OkStatus();
  for (int64_t i = 0; i < input.count; ++i) {
    if (input.ids[i] >= 0 && input.ids[i] < feature.vocabulary) continue;
    const bool edge = input.ids[i] == std::numeric_limits<int32_t>::max() ||
                      input.ids[i] == std::numeric_limits<int32_t>::min();
    return Refuse("id ", input.ids[i], edge ? " (or beyond, in 64 bits)" : "", " of ",
                  feature.where, " is outside of the table, which has ", feature.vocabulary,
                  " rows. A SparseCore would silently train another row; "
                  "out_of_range_ids='hardware' does so here. In the dataset, remove such ids, or "
                  "take them modulo the number of rows.");
  }
  return absl::OkStatus();
}

// Appends the triples of a feature to the list of each SparseCore of the core, in order of samples.
//
// Adjacent equal ids of a sample are merged. The scale of a sample is computed from all its ids, in
// float32 and in their order.
inline absl::Status AppendTriples(const FeatureInStack& feature, const FeatureIds& input,
                                  std::vector<std::vector<Triple>>* of_sparse_cores) {
  std::vector<int32_t> samples;
  absl::Status status = CheckIds(feature, input);
  if (status.ok()) status = Samples(feature, input, &samples);
  if (!status.ok()) return status;
  const int64_t per = feature.samples / feature.sparse_cores;
  const int64_t stack_per = feature.stack_samples / feature.sparse_cores;
  const uint32_t mask = static_cast<uint32_t>(feature.shards - 1);
  const auto weight = [&](int64_t i) { return input.weights[input.one_weight ? 0 : i]; };
  for (int64_t begin = 0, end = 0; begin < input.count; begin = end) {
    const int32_t sample = samples[static_cast<size_t>(begin)];
    float sum = 0.0f;
    for (; end < input.count && samples[static_cast<size_t>(end)] == sample; ++end) {
      sum += estimator_bridge::GainTerm(feature.combiner, weight(end));
    }
    const float scale = estimator_bridge::GainScale(feature.combiner, sum);
    const int64_t sparse_core = sample / per;
    std::vector<Triple>& triples = (*of_sparse_cores)[static_cast<size_t>(sparse_core)];
    const int64_t row =
        sample % per + feature.row_offset / feature.sparse_cores + sparse_core * stack_per;
    for (int64_t i = begin; i < end;) {
      const int32_t id = input.ids[i];
      float merged = weight(i);
      for (++i; i < end && input.ids[i] == id; ++i) merged += weight(i);
      // Unsigned, so that out-of-range ids wrap around as on the hardware.
      const uint32_t bits = static_cast<uint32_t>(id);
      const uint32_t col = ((bits + static_cast<uint32_t>(feature.rotation)) & mask) +
                           (bits & ~mask) + static_cast<uint32_t>(feature.col_offset);
      triples.push_back({static_cast<int32_t>(row), static_cast<int32_t>(col), merged * scale});
    }
  }
  return absl::OkStatus();
}

}  // namespace software_sparsecore
