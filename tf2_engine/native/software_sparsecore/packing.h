// Writes and reads a buffer of fixed size with the sorted ids of all SparseCores of a core, and
// pointers into the buffer. This is not a kernel; see occurrences.h.
//
// For each SparseCore of the core and each minibatch there is a block of pointers. A block has one
// pointer per SparseCore of the machine, to the end of the ids that go to this SparseCore. These ids
// begin at the end of the previous ids, rounded up to a multiple of eight.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "software_sparsecore/occurrences.h"

namespace software_sparsecore {

constexpr int64_t kPad = 8;
constexpr int32_t kPadId = std::numeric_limits<int32_t>::max();
constexpr float kPadGain = 2147483648.0f;
constexpr int64_t kBuckets = 64;  // buckets of a partition; a minibatch has some of them

inline int64_t RoundUp(int64_t number) { return (number + kPad - 1) / kPad * kPad; }

// The sorted ids of one SparseCore's samples, with the running ends of the partitions, or of the
// buckets of each partition.
struct SortedIds {
  const int32_t *samples, *tokens, *ends;
  const float* gains;
  int64_t count, num_ends;
};

struct PackSettings {
  int64_t shards = 1;        // SparseCores of all cores
  int64_t sparse_cores = 1;  // SparseCores of one core
  int64_t samples = 1;       // samples of the stack on one SparseCore
  int64_t max_ids_per_sample = 1;
  int64_t max_minibatches = 1;
  bool drops = false;  // drops ids that do not fit, instead of returning an error
  std::string table;

  int64_t capacity() const { return max_ids_per_sample * samples * sparse_cores; }
  int64_t num_pointers(int64_t minibatches) const {
    return minibatches * sparse_cores * RoundUp(shards);
  }
};

inline absl::Status CheckPackSettings(const PackSettings& settings) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!IsPowerOfTwo(settings.shards) || settings.shards > kMostSparseCores) {
    return Refuse("there are ", settings.shards, " SparseCores, which is not a power of two.");
  }
  // The sizes are at most 2^31, so the product of two does not overflow.
  if (settings.samples * settings.sparse_cores > kMost ||
      settings.capacity() > kMost || settings.max_minibatches > kMost ||
      settings.max_minibatches > kMost / (settings.sparse_cores * RoundUp(settings.shards))) {
    return Refuse("table ", settings.table, " has room for more ids than 2^31.");
  }
  if (settings.capacity() % kPad != 0) {
    return Refuse("The max_ids_per_chip is set to be ", settings.capacity(),
                  " which is not divisible by the xla_pad_size 8 for table ", settings.table, ".");
  }
  return absl::OkStatus();
}

// The buffer. Elements beyond `num_pointers` and `num_ids` are left unchanged.
struct Packed {
  int32_t *pointers, *samples, *tokens;
  float* gains;
  int64_t num_pointers = 0, num_ids = 0, minibatches = 0, dropped = 0;
};

// The first bucket of each minibatch, and finally the number of buckets. Bit k of `splits` says
// whether the buckets of node k of a binary tree over all buckets are cut in half.
inline std::vector<int64_t> Cuts(uint64_t splits) {
  std::vector<int64_t> cuts = {0};
  for (int64_t first = 0, level = 1; level < kBuckets; first += level, level *= 2) {
    for (int64_t node = 0; node < level; ++node) {
      const int64_t size = kBuckets / level;
      if (splits >> (first + node) & 1) cuts.push_back(node * size + size / 2);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(kBuckets);
  return cuts;
}

inline absl::Status CheckSorted(const PackSettings& settings, const SortedIds& sorted,
                                int64_t minibatches) {
  const bool buckets = sorted.num_ends == settings.shards * kBuckets + 1;
  if (!buckets && (sorted.num_ends != settings.shards + 1 || minibatches > 1)) {
    return Refuse("id_counts of table ", settings.table, " has ", sorted.num_ends,
                  " elements, but there are ", settings.shards, " SparseCores and ", minibatches,
                  " minibatches.");
  }
  if (sorted.ends[0] != 0 || sorted.ends[sorted.num_ends - 1] != sorted.count) {
    return Refuse("id_counts of table ", settings.table, " go from ", sorted.ends[0], " to ",
                  sorted.ends[sorted.num_ends - 1], " for ", sorted.count, " ids.");
  }
  if (!std::is_sorted(sorted.ends, sorted.ends + sorted.num_ends)) {
    return Refuse("id_counts of table ", settings.table, " decrease.");
  }
  return absl::OkStatus();
}

// Writes the sorted ids of all SparseCores of a core into the buffer, which has room for
// `settings.capacity()` ids and the pointers of the maximum number of minibatches.
inline absl::Status Pack(const PackSettings& settings, const std::vector<SortedIds>& all,
                         uint64_t splits, Packed* packed) {
  const std::vector<int64_t> cuts = Cuts(splits);
  packed->minibatches = static_cast<int64_t>(cuts.size()) - 1;
  if (packed->minibatches > settings.max_minibatches) {
    return Refuse("the splits of table ", settings.table, " make ", packed->minibatches,
                  " minibatches, but at most ", settings.max_minibatches, " are allowed.");
  }
  int64_t left = 0;
  for (const SortedIds& sorted : all) {
    absl::Status status = CheckSorted(settings, sorted, packed->minibatches);
    if (!status.ok()) return status;
    left += sorted.count;
  }
  const int64_t capacity = settings.capacity();
  int64_t at = 0;
  for (const SortedIds& sorted : all) {
    const int64_t stride = sorted.num_ends == settings.shards + 1 ? 1 : kBuckets;
    for (int64_t minibatch = 0; minibatch < packed->minibatches; ++minibatch) {
      for (int64_t shard = 0; shard < settings.shards; ++shard) {
        const int64_t first = shard * stride + (stride == 1 ? 0 : cuts[minibatch]);
        const int64_t last = shard * stride + (stride == 1 ? 1 : cuts[minibatch + 1]);
        const int64_t begin = sorted.ends[first];
        int64_t count = sorted.ends[last] - begin;
        if (count > capacity - at) {
          if (!settings.drops) {
            return Refuse("The max_ids_per_chip is set to be ", capacity,
                          " which is not going to fit all ids. The remaining id count is ", left,
                          " for table ", settings.table,
                          ". Raise max_ids_per_chip_per_sample, or set allow_id_dropping.");
          }
          packed->dropped += count - (capacity - at);
          count = capacity - at;
        }
        std::copy_n(sorted.samples + begin, count, packed->samples + at);
        std::copy_n(sorted.tokens + begin, count, packed->tokens + at);
        std::copy_n(sorted.gains + begin, count, packed->gains + at);
        left -= sorted.ends[last] - begin;
        at += count;
        packed->pointers[packed->num_pointers++] = static_cast<int32_t>(at);
        const int64_t next = RoundUp(at);
        std::fill(packed->samples + at, packed->samples + next, kPadId);
        std::fill(packed->tokens + at, packed->tokens + next, kPadId);
        std::fill(packed->gains + at, packed->gains + next, kPadGain);
        at = next;
      }
      while (packed->num_pointers % kPad != 0) {
        packed->pointers[packed->num_pointers++] = static_cast<int32_t>(at);
      }
    }
  }
  packed->num_ids = at;
  return absl::OkStatus();
}

// A buffer as the input of an op on the device.
struct PackedIds {
  const int32_t *pointers, *samples, *tokens;
  const float* gains;
  int64_t num_pointers, num_ids, minibatches;
};

// Bounds for the contents of a buffer.
struct Bounds {
  int64_t shards, sparse_cores, samples_per_sparse_core, rows_per_sparse_core;
};

// Calls `visit(sample of the core, shard, row of that shard, gain)` for every id of a buffer, in
// order of sending SparseCore, minibatch and receiving SparseCore.
template <class Visit>
absl::Status ForEachId(const PackedIds& packed, const Bounds& bounds, const std::string& table,
                       const Visit& visit) {
  const int64_t stride = RoundUp(bounds.shards);
  // Minibatches are int32, so the division does not overflow.
  if (packed.minibatches < 1 ||
      packed.minibatches > packed.num_pointers / (bounds.sparse_cores * stride)) {
    return Refuse("table ", table, " has ", packed.num_pointers, " row_pointers for ",
                  packed.minibatches, " minibatches of ", bounds.sparse_cores, " SparseCores.");
  }
  int64_t begin = 0;
  for (int64_t block = 0; block < packed.minibatches * bounds.sparse_cores; ++block) {
    const int64_t first_sample = block / packed.minibatches * bounds.samples_per_sparse_core;
    for (int64_t shard = 0; shard < bounds.shards; ++shard) {
      const int64_t end = packed.pointers[block * stride + shard];
      if (end < begin || end > packed.num_ids) {
        return Refuse("a row pointer of table ", table, " is ", end, ", but those before end at ",
                      begin, ", and there are ", packed.num_ids, " ids.");
      }
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = packed.samples[i], token = packed.tokens[i];
        if (sample < 0 || sample >= bounds.samples_per_sparse_core) {
          return Refuse("a sample id of table ", table, " is ", sample, ", but a SparseCore has ",
                        bounds.samples_per_sparse_core, " samples.");
        }
        if (token < 0 || token >= bounds.rows_per_sparse_core) {
          return Refuse("a token of table ", table, " is ", token, ", but a SparseCore has ",
                        bounds.rows_per_sparse_core,
                        " rows: an id was outside of all tables of the stack.");
        }
        visit(first_sample + sample, shard, token, packed.gains[i]);
      }
      begin = RoundUp(end);
    }
  }
  return absl::OkStatus();
}

}  // namespace software_sparsecore
