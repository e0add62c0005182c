// The arguments that the host passes to the GPU kernels. Plain C++17, compiled by g++ and NVRTC.

#pragma once

#include <cstdint>

#include "host/gains.h"
#include "host/placement.h"
#include "rules/rule.h"

namespace estimator_bridge {
namespace gpu {

constexpr uint32_t kThreads = 256;      // threads per block
constexpr uint32_t kDigits = 256;       // number of values of one digit in the sort
constexpr uint32_t kTile = 1024;        // items that a block sorts at a time
constexpr uint32_t kLongRun = 64;       // see `IsLong`; also the rows that a block sums at a time
constexpr uint32_t kLongColumns = 64;   // columns that a block sums at a time
constexpr uint32_t kMostSettings = 32;  // upper bound of the size of a rule's settings in bytes
constexpr uint32_t kMostAxes = 8;       // dimensions of an activation, if the batch is on the GPU

// How the cells of occurrences are stored. kOnes: occurrence i belongs to cell i. kSplits: the
// occurrences of cell i lie between two row splits. kCells: each occurrence has the number of its
// cell.
enum class Layout : uint32_t { kOnes, kSplits, kCells };
enum class Gains : uint32_t { kNone, kOfIds, kOfCells };
enum class Stored : uint32_t { kFloat32, kFloat16, kBfloat16 };  // how a table stores its rows

// A feature on a core. Positions refer to the arrays of `Staged`.
struct PieceAt {
  float* data;           // [num_cells, dim], activations or gradients
  uint32_t first;        // its first occurrence
  uint32_t count;        // the number of its occurrences
  uint32_t num_cells;
  Layout layout;
  uint32_t first_cell;   // its first row split, or the cell of its first occurrence
  uint32_t filled;       // cells from this one on have no occurrences
  Gains gains;
  uint32_t first_gain;
  uint32_t dim;
  uint32_t by_fours;     // whether to read and write four floats at a time
  uint32_t core;
  uint32_t first_part;   // the first part of its table
  uint32_t end_part;
  uint32_t unsorted;  // with kCells: whether occurrences are not in order of their cells
};

// A shard of a table. A key is the index of a row among the rows of all parts. The key `end_key` of
// a table's last part belongs to no row: occurrences with this key are left out.
struct PartAt {
  float* rows[1 + kMaxSlots];  // [rows, dim] each, parameters first
  uint32_t first_key, end_key;
  uint32_t shard;
  Stored stored;  // how the parameters are stored; slots are float32
};

// A feature whose batch is on the GPU, as it was enqueued. See InputFeature and InputBatch in
// host/occurrences_op.h.
struct RawAt {
  const int64_t* ids;
  const int64_t* index;  // coordinates, [count, rank], or row splits, or null
  const float* weight;   // or null
  int64_t rows;
  Placement placement;
  int64_t sizes[kMostAxes];
  uint32_t rank, axes;
  uint32_t num_splits, num_rows, per_row;  // of ragged ids; activations per row
  Combiner combiner;
  bool is_sequence, drops;
};

// A problem in a batch that is on the GPU, as a number. The numbers are in the order in which a CPU
// would find the problems, so the problem with the smallest number is reported.
using Problem = uint64_t;
constexpr Problem kNoProblem = ~Problem{0};
enum class ProblemKind : uint32_t { kIndex, kId };  // kIndex: a coordinate or row split is wrong

struct Report {
  Problem problem;
  int64_t value, before;  // an id; a coordinate; or a row split and the previous one
  uint32_t count, num_rows, axis;
  uint32_t op;  // the number of the op that looked the batch up
};

// The batch of a step in GPU memory. `raws` and `problem` are null if the host has read the batch.
struct Staged {
  const PieceAt* pieces;
  const PartAt* parts;
  const uint32_t* keys;   // the key of each occurrence
  const uint32_t* cells;  // row splits, and cells of occurrences
  const float* gains;
  const RawAt* raws;
  Problem* problem;
};

// An occurrence, to be sorted by its key.
struct alignas(16) Item {
  uint32_t key;
  float gain;
  uint32_t piece, cell;
};

struct ReadArgs {
  Staged staged;
};

struct LookUpArgs {
  Staged staged;
  Report* report;  // in memory of the host; null if the host has read the batch
  uint32_t op;     // see `Report`
};

struct ItemsArgs {
  Staged staged;
  Item* items;
};

// One pass of a radix sort. A block sorts `chunk` items, and counts each value of the digit.
struct SortArgs {
  const Item* from;
  Item* to;
  uint32_t* counts;  // [blocks, kDigits]
  uint32_t count, chunk, blocks, shift;
};

// One step for tables with the same width and optimizer. Their items are at `begin` to `end`.
struct UpdateArgs {
  Staged staged;
  const Item* items;
  uint32_t begin, end;
  uint32_t first_part, end_part;
  uint32_t dim;
  uint32_t long_blocks;      // the number of blocks at the start of the grid for long runs
  uint32_t cores_per_shard;  // 0: a row is updated once, with the sum over all cores
  const float* rate;
  SharedSettings shared;
  alignas(8) unsigned char settings[kMostSettings];  // the rule's struct
};

}  // namespace gpu
}  // namespace estimator_bridge
