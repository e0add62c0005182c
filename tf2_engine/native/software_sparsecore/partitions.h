// Sorts the triples of one SparseCore's samples by the SparseCores that have the rows. This is not
// a kernel; see occurrences.h.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "software_sparsecore/occurrences.h"

namespace software_sparsecore {

// One id of one sample, sent to a SparseCore. `token` is the row in that SparseCore's shard, and
// `sample` is a sample of the sending SparseCore.
struct Routed {
  int32_t sample, token;
  float gain;
};

// For each receiving SparseCore: the ids in order, and the number of distinct ids.
struct Partitions {
  std::vector<std::vector<Routed>> ids;
  std::vector<int32_t> distinct;
};

// The triples of one feature. Features of a table share its `col_offset`.
struct FeatureTriples {
  int64_t col_offset;
  std::vector<Triple> triples;
};

// Sorts the triples of one SparseCore's samples, of all features of a stack.
//
// In a partition the tables are in order of their offsets, their ids in order of the unsigned
// column, and occurrences of an id in several samples in their original order. Occurrences of an id
// in one sample are merged at the place of the first. Equal ids of different tables are not merged.
//
// Args:
//   shards: the number of SparseCores, a power of two.
//   samples: the number of samples of the stack on one SparseCore.
inline Partitions Partition(std::vector<FeatureTriples> features, int64_t shards, int64_t samples) {
  std::map<int64_t, std::vector<Triple>> tables;
  for (FeatureTriples& feature : features) {
    std::vector<Triple>& triples = tables[feature.col_offset];
    triples.insert(triples.end(), feature.triples.begin(), feature.triples.end());
  }
  int bits = 0;
  while ((int64_t{1} << bits) < shards) ++bits;
  Partitions partitions;
  partitions.ids.resize(static_cast<size_t>(shards));
  partitions.distinct.assign(static_cast<size_t>(shards), 0);
  for (auto& [offset, triples] : tables) {
    std::stable_sort(triples.begin(), triples.end(), [](const Triple& a, const Triple& b) {
      return static_cast<uint32_t>(a.col) < static_cast<uint32_t>(b.col);
    });
    for (size_t i = 0; i < triples.size(); ++i) {
      const Triple& triple = triples[i];
      const size_t to = static_cast<size_t>(static_cast<uint32_t>(triple.col) &
                                            static_cast<uint32_t>(shards - 1));
      const bool same_id = i > 0 && triples[i - 1].col == triple.col;
      if (same_id && triples[i - 1].row == triple.row) {
        partitions.ids[to].back().gain += triple.gain;
        continue;
      }
      if (!same_id) ++partitions.distinct[to];
      partitions.ids[to].push_back({static_cast<int32_t>(triple.row % samples),
                                    triple.col >> bits, triple.gain});
    }
  }
  return partitions;
}

// Returns an error if a SparseCore gets more ids from another one than the limits allow, as the
// hardware's own preprocessing does.
inline absl::Status CheckLimits(const Partitions& partitions, int64_t max_ids, int64_t max_distinct,
                                const std::string& table) {
  for (size_t i = 0; i < partitions.ids.size(); ++i) {
    const int64_t ids = static_cast<int64_t>(partitions.ids[i].size());
    if (ids > max_ids) {
      return Refuse("Sparse core ", i, " gets ", ids,
                    " ids while the max ids per sparse core is set to be ", max_ids, " for table ",
                    table, ". Raise SparseCoreEmbeddingConfig.max_ids_per_table.");
    }
    if (partitions.distinct[i] > max_distinct) {
      return Refuse("Sparse core ", i, " gets ", partitions.distinct[i],
                    " unique ids while the max unique ids per sparse core is set to be ",
                    max_distinct, " for table ", table,
                    ". Raise SparseCoreEmbeddingConfig.max_unique_ids_per_table.");
    }
  }
  return absl::OkStatus();
}

}  // namespace software_sparsecore
