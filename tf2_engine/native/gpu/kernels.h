// The GPU kernels, which NVRTC compiles at first use; see native/gpu_ops.py and gpu/step.h.
//
// They compute the same as host/lookup_op.h and host/update_op.h, with the same rounding: first
// products, then sums in order of occurrence. Therefore every run of an update gives the same bits,
// and these equal the bits of the CPU, except for powers. Compile with --fmad=false.
//
// Tests also compile this file with g++ and run the threads of a block in turns. Therefore all
// threads of a block must reach the same barriers and ballots.

#pragma once

#include "gpu/args.h"

namespace estimator_bridge {
namespace gpu {

constexpr uint32_t kWarp = 32, kWarps = kThreads / kWarp;

// The floats of a row that one thread processes.
template <int kWidth>
struct alignas(4 * kWidth) Floats {
  float of[kWidth];
};

// The number of threads that share a row of `width` `Floats`, a power of 2.
__device__ inline uint32_t LanesOf(uint32_t width) {
  uint32_t lanes = 1;
  while (lanes < kWarp && lanes < width) lanes *= 2;
  return lanes;
}

// Finds the first number in [begin, end) for which `is_beyond` holds, or `end`. `is_beyond` must
// hold for all numbers after the first such number.
template <class IsBeyond>
__device__ inline uint32_t FirstBeyond(uint32_t begin, uint32_t end, const IsBeyond& is_beyond) {
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (is_beyond(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Finds the part of a table or group that contains the key. The end key of the last part counts as
// contained.
__device__ inline const PartAt& PartOf(const PartAt* parts, uint32_t first, uint32_t end,
                                       uint32_t key) {
  const auto is_beyond = [&](uint32_t i) { return parts[i].first_key > key; };
  return parts[FirstBeyond(first + 1, end, is_beyond) - 1];
}

__device__ inline uint64_t At(const PartAt& part, uint32_t key, uint32_t dim) {
  return uint64_t{key - part.first_key} * dim;
}

template <int kWidth>
__device__ inline Floats<kWidth> Load(const float* from) {
  return *reinterpret_cast<const Floats<kWidth>*>(from);
}

__device__ inline float AsFloat(uint16_t bits, Stored stored) {
  if (stored == Stored::kBfloat16) return __builtin_bit_cast(float, uint32_t{bits} << 16);
  const uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest < 0x400u) {  // denormal, or zero
    const float magnitude = static_cast<float>(rest) * (1.0f / (1 << 24));
    return sign == 0 ? magnitude : -magnitude;
  }
  // The exponent, whose bits are all set for infinities and NaN.
  const uint32_t more = rest < 0x7c00u ? 127 - 15 : 255 - 31;
  return __builtin_bit_cast(float, sign | ((rest << 13) + (more << 23)));
}

// Reads a part of a row of the parameters. The values of small types are exact.
template <int kWidth>
__device__ inline Floats<kWidth> LoadParameters(const PartAt& part, uint64_t at) {
  if (part.stored == Stored::kFloat32) return Load<kWidth>(part.rows[0] + at);
  struct alignas(2 * kWidth) Halves {
    uint16_t of[kWidth];
  };
  const auto* const halves = reinterpret_cast<const uint16_t*>(part.rows[0]);
  const Halves from = *reinterpret_cast<const Halves*>(halves + at);
  Floats<kWidth> row;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) row.of[i] = AsFloat(from.of[i], part.stored);
  return row;
}

// Whether the batch is invalid. If it is, activations are zero, and no row is updated.
__device__ inline bool Failed(const Staged& staged) {
  return staged.problem != nullptr && *staged.problem != kNoProblem;
}

template <int kWidth>
struct Term {
  Floats<kWidth> row;
  float gain;
};

// Sums gains times rows, in order. Requests several rows before adding the first.
template <int kWidth, class TermOf>
__device__ inline void Add(Floats<kWidth>* sum, uint32_t begin, uint32_t end,
                           const TermOf& term_of) {
  constexpr uint32_t kAhead = 4;
  for (uint32_t k = begin; k < end; k += kAhead) {
    Term<kWidth> terms[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (k + i >= end) continue;
      terms[i] = term_of(k + i);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (k + i >= end) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum->of[j] += terms[i].gain * terms[i].row.of[j];
    }
  }
}

// A range of occurrences that contains all of a cell's occurrences, in order. If `some` is true, it
// also contains occurrences of other cells.
struct RunAt {
  uint32_t begin, end;
  bool some;
};

__device__ inline RunAt RunOf(const Staged& staged, const PieceAt& piece, uint32_t cell) {
  if (cell >= piece.filled || Failed(staged)) return {0, 0, false};
  const uint32_t* const cells = staged.cells + piece.first_cell;
  if (piece.layout == Layout::kOnes) return {cell, cell + 1, false};
  if (piece.layout == Layout::kSplits) return {cells[cell], cells[cell + 1], false};
  if (piece.unsorted) return {0, piece.count, true};
  const uint32_t begin =
      FirstBeyond(0, piece.count, [&](uint32_t k) { return cells[k] >= cell; });
  return {begin, FirstBeyond(begin, piece.count, [&](uint32_t k) { return cells[k] > cell; }),
          false};
}

__device__ inline bool IsIn(const Staged& staged, const PieceAt& piece, const RunAt& run,
                            uint32_t cell, uint32_t k) {
  return !run.some || staged.cells[piece.first_cell + k] == cell;
}

template <int kWidth>
__device__ inline void LookUp(const Staged& staged, const PieceAt& piece) {
  const uint32_t lanes = LanesOf((piece.dim + kWidth - 1) / kWidth);
  const uint32_t cell = blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  if (cell >= piece.num_cells) return;
  const RunAt run = RunOf(staged, piece, cell);
  const uint32_t* keys = staged.keys + piece.first;
  const float* gains = staged.gains + piece.first_gain;
  for (uint32_t column = threadIdx.x % lanes * kWidth; column < piece.dim;
       column += lanes * kWidth) {
    Floats<kWidth> sum = {};
    Add(&sum, run.begin, run.end, [&](uint32_t k) -> Term<kWidth> {
      const PartAt& part = PartOf(staged.parts, piece.first_part, piece.end_part, keys[k]);
      if (keys[k] == part.end_key || !IsIn(staged, piece, run, cell, k)) return {};
      const float gain =
          piece.gains == Gains::kNone ? 1.0f : gains[piece.gains == Gains::kOfIds ? k : cell];
      return {LoadParameters<kWidth>(part, At(part, keys[k], piece.dim) + column), gain};
    });
    *reinterpret_cast<Floats<kWidth>*>(piece.data + uint64_t{cell} * piece.dim + column) = sum;
  }
}

__device__ inline void Note(const Staged& staged, ProblemKind kind, uint32_t at) {
  atomicMin(staged.problem, Problem{static_cast<uint32_t>(kind)} << 63 |
                                Problem{blockIdx.y} << 32 | at);
}

// The cell of an occurrence of a batch that is on the GPU, and whether the occurrence is kept.
struct CellAt {
  uint32_t cell;
  bool is_kept;
  uint32_t bad_axis;  // the axis of a coordinate that is out of range, or kMostAxes
};

__device__ inline CellAt CellOf(const RawAt& raw, uint32_t at) {
  CellAt found = {0, true, kMostAxes};
  if (raw.rank == 0) {  // a ragged sequence
    const auto is_beyond = [&](uint32_t i) { return raw.index[i] > at; };
    const uint32_t row = FirstBeyond(1, raw.num_rows, is_beyond) - 1;
    const uint64_t position = at - static_cast<uint64_t>(raw.index[row]);
    found.is_kept = position < raw.per_row;
    found.cell = row * raw.per_row + (found.is_kept ? position : raw.per_row - 1);
    return found;
  }
  for (uint32_t axis = 0; axis < raw.axes; ++axis) {
    const int64_t size = raw.sizes[axis];
    int64_t coordinate = raw.index[uint64_t{at} * raw.rank + axis];
    if (coordinate < 0 || coordinate >= size) {
      if (coordinate < 0 || axis != 1 || !raw.is_sequence) return {0, false, axis};
      found.is_kept = false;
      coordinate = size - 1;  // so that cells stay in order
    }
    found.cell = found.cell * static_cast<uint32_t>(size) + static_cast<uint32_t>(coordinate);
  }
  return found;
}

// Checks and copies one of the row splits.
__device__ inline void ReadSplit(const Staged& staged, const PieceAt& piece, const RawAt& raw,
                                 uint32_t at) {
  const int64_t split = raw.index[at], before = at == 0 ? 0 : raw.index[at - 1];
  const bool is_last = at == raw.num_rows;
  if ((at == 0 && split != 0) || split < before || split > piece.count ||
      (is_last && split != piece.count)) {
    Note(staged, ProblemKind::kIndex, at);
  }
  if (piece.layout == Layout::kSplits) {
    const_cast<uint32_t*>(staged.cells)[piece.first_cell + at] = static_cast<uint32_t>(split);
  }
}

// Checks an id and its place, and writes its key, cell and weight.
__device__ inline void ReadId(const Staged& staged, const PieceAt& piece, const RawAt& raw,
                              uint32_t at) {
  const int64_t id = raw.ids[at];
  bool is_kept = true;
  if (piece.layout == Layout::kCells) {
    const CellAt found = CellOf(raw, at);
    is_kept = found.is_kept;
    if (found.bad_axis != kMostAxes) Note(staged, ProblemKind::kIndex, at);
    if (at > 0 && CellOf(raw, at - 1).cell > found.cell) {
      const_cast<PieceAt*>(staged.pieces)[blockIdx.y].unsorted = 1;
    }
    const_cast<uint32_t*>(staged.cells)[piece.first_cell + at] = found.cell;
  }
  if (is_kept && static_cast<uint64_t>(id) >= static_cast<uint64_t>(raw.rows)) {
    is_kept = false;
    if (!raw.drops) Note(staged, ProblemKind::kId, at);
  }
  uint32_t key = staged.parts[piece.end_part - 1].end_key;
  if (is_kept) {
    int64_t shard, row;
    raw.placement.Find(id, &shard, &row);
    key = staged.parts[piece.first_part + shard].first_key + static_cast<uint32_t>(row);
  }
  const_cast<uint32_t*>(staged.keys)[piece.first + at] = key;
  if (piece.gains == Gains::kOfIds) {
    const_cast<float*>(staged.gains)[piece.first_gain + at] =
        raw.weight == nullptr ? 1.0f : raw.weight[at];
  }
}

// Multiplies the weights of a cell by the scale of the combiner; see `Gains` in
// host/occurrences_op.h.
__device__ inline void ScaleGains(const Staged& staged, const PieceAt& piece, const RawAt& raw,
                                  uint32_t cell) {
  const RunAt run = RunOf(staged, piece, cell);
  float* const gains = const_cast<float*>(staged.gains) + piece.first_gain;
  const bool of_ids = piece.gains == Gains::kOfIds;
  const uint32_t left_out = staged.parts[piece.end_part - 1].end_key;
  float sum = 0.0f;
  for (uint32_t k = run.begin; k < run.end; ++k) {
    if (staged.keys[piece.first + k] == left_out || !IsIn(staged, piece, run, cell, k)) continue;
    sum += GainTerm(raw.combiner, of_ids ? gains[k] : 1.0f);
  }
  const float scale = GainScale(raw.combiner, sum);
  if (!of_ids) gains[cell] = scale;
  for (uint32_t k = run.begin; of_ids && k < run.end; ++k) {
    if (IsIn(staged, piece, run, cell, k)) gains[k] = gains[k] * scale;
  }
}

// Tells the host what is wrong with a batch, unless the host has yet to read an earlier report.
__device__ inline void Tell(const Staged& staged, volatile Report* report, uint32_t op) {
  if (report->problem != kNoProblem) return;
  const Problem problem = *staged.problem;
  const uint32_t number = problem >> 32 & 0x7fffffffu, at = static_cast<uint32_t>(problem);
  const RawAt& raw = staged.raws[number];
  const PieceAt& piece = staged.pieces[number];
  report->op = op;
  report->count = piece.count;
  report->num_rows = raw.num_rows;
  if (problem >> 63 == static_cast<uint32_t>(ProblemKind::kId)) {
    report->value = raw.ids[at];
  } else if (raw.rank == 0) {
    report->value = raw.index[at];
    report->before = at == 0 ? 0 : raw.index[at - 1];
  } else {
    const uint32_t axis = CellOf(raw, at).bad_axis;
    report->axis = axis;
    report->value = raw.index[uint64_t{at} * raw.rank + axis];
  }
  __threadfence_system();
  report->problem = problem;
}

__device__ inline uint32_t DigitOf(const SortArgs& args, uint32_t at) {
  return args.from[at].key >> args.shift & (kDigits - 1);
}

// A mask of the threads in a warp that have the same digit. Only `valid` threads count.
__device__ inline uint32_t SameDigit(uint32_t digit, bool valid) {
  uint32_t same = __ballot_sync(0xffffffffu, valid);
#pragma unroll
  for (uint32_t bit = 1; bit < kDigits; bit *= 2) {
    const uint32_t with_bit = __ballot_sync(0xffffffffu, (digit & bit) != 0);
    same &= digit & bit ? with_bit : ~with_bit;
  }
  return same;
}

// Returns the sum of the counts of all earlier threads of the block.
__device__ inline uint32_t Before(uint32_t count, uint32_t* shared) {
  const uint32_t thread = threadIdx.x;
  shared[thread] = count;
  __syncthreads();
  for (uint32_t step = 1; step < kThreads; step *= 2) {
    const uint32_t left = thread >= step ? shared[thread - step] : 0;
    __syncthreads();
    shared[thread] += left;
    __syncthreads();
  }
  return shared[thread] - count;
}

// One step of a rule for the floats of a row that a thread processes; see `Step` in rules/rule.h.
template <int kSlots, int kWidth>
struct RowStep {
  template <class Rule>
  __device__ void Run(const Rule& rule) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float w = around.decays() ? around.Decayed(rows[0].of[i]) : rows[0].of[i];
      const float g = around.Gradient(sum.of[i]);
      if constexpr (kSlots == 0) rule(w, g);
      if constexpr (kSlots == 1) rule(w, rows[1].of[i], g);
      if constexpr (kSlots == 2) rule(w, rows[1].of[i], rows[2].of[i], g);
      if constexpr (kSlots == 3) rule(w, rows[1].of[i], rows[2].of[i], rows[3].of[i], g);
      rows[0].of[i] = around.Weight(w);
    }
  }

  const ClipAndDecay& around;
  Floats<kWidth>* rows;  // of the parameters and of each slot
  const Floats<kWidth>& sum;
};

// Reads a row and its slots, starting at a column, applies one step, and writes them.
template <class OneRule, int kWidth>
__device__ inline void UpdateRow(const UpdateArgs& args, const PartAt& part, uint64_t at,
                                 const Floats<kWidth>& sum) {
  constexpr int kSlots = static_cast<int>(OneRule::kSlots.size());
  static_assert(sizeof(OneRule) <= kMostSettings, "");
  const OneRule& rule = *reinterpret_cast<const OneRule*>(args.settings);
  const float rate = *args.rate;
  const ClipAndDecay around(args.shared, rate);
  Floats<kWidth> rows[1 + kSlots];
#pragma unroll
  for (int s = 0; s <= kSlots; ++s) rows[s] = Load<kWidth>(part.rows[s] + at);
  rule.Update(rate, RowStep<kSlots, kWidth>{around, rows, sum});
#pragma unroll
  for (int s = 0; s <= kSlots; ++s) {
    *reinterpret_cast<Floats<kWidth>*>(part.rows[s] + at) = rows[s];
  }
}

__device__ inline const float* GradientOf(const UpdateArgs& args, const Item& item) {
  return args.staged.pieces[item.piece].data + uint64_t{item.cell} * args.dim;
}

template <int kWidth>
__device__ inline Floats<kWidth> SumOf(const UpdateArgs& args, uint32_t begin, uint32_t end,
                                       uint32_t column) {
  Floats<kWidth> sum = {};
  Add(&sum, begin, end, [&](uint32_t k) -> Term<kWidth> {
    const Item& item = args.items[k];
    return {Load<kWidth>(GradientOf(args, item) + column), item.gain};
  });
  return sum;
}

// Updates some columns of a row once per core: first for the core that owns the row, then for the
// other cores in order.
template <class OneRule, int kWidth>
__device__ inline void UpdateByCore(const UpdateArgs& args, const PartAt& part, uint32_t begin,
                                    uint32_t end, uint32_t column) {
  const uint32_t key = args.items[begin].key, row = key - part.first_key;
  const uint32_t owner = part.shard * args.cores_per_shard + row % args.cores_per_shard;
  const auto core = [&](uint32_t k) { return args.staged.pieces[args.items[k].piece].core; };
  for (const bool owners : {true, false}) {
    for (uint32_t from = begin, to; from < end; from = to) {
      for (to = from; to < end && core(to) == core(from); ++to) {
      }
      if ((core(from) == owner) != owners) continue;
      const Floats<kWidth> sum = SumOf<kWidth>(args, from, to, column);
      UpdateRow<OneRule>(args, part, At(part, key, args.dim) + column, sum);
    }
  }
}

// Whether the run of a row's items that begins at `at` is long. A whole block sums a long run; a
// few threads sum any other run. A run is long if it contains two items whose indices in the group
// are multiples of kLongRun.
__device__ inline bool IsLong(const UpdateArgs& args, uint32_t at) {
  const uint32_t mark = args.begin + (at - args.begin + kLongRun - 1) / kLongRun * kLongRun;
  return args.cores_per_shard == 0 && mark + kLongRun < args.end &&
         args.items[mark + kLongRun].key == args.items[at].key;
}

// Updates a row with a long run of items. The run's first multiple of kLongRun selects the block.
template <class OneRule, int kWidth>
__device__ inline void UpdateLong(const UpdateArgs& args) {
  const Item* const items = args.items;
  const uint32_t mark = args.begin + blockIdx.x * kLongRun, key = items[mark].key;
  if (mark + kLongRun >= args.end || items[mark + kLongRun].key != key) return;
  if (blockIdx.x > 0 && items[mark - kLongRun].key == key) return;
  const uint32_t begin = FirstBeyond(blockIdx.x > 0 ? mark - kLongRun : mark, mark,
                                     [&](uint32_t k) { return items[k].key == key; });
  const uint32_t end =
      FirstBeyond(mark + 1, args.end, [&](uint32_t k) { return items[k].key != key; });
  const PartAt& part = PartOf(args.staged.parts, args.first_part, args.end_part, key);
  if (key == part.end_key) return;
  __shared__ float terms[kLongRun][kLongColumns];
  constexpr uint32_t kLanes = kLongColumns / kWidth, kGroups = kThreads / kLanes;
  constexpr uint32_t kEach = kLongRun / kGroups;
  const uint32_t group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  for (uint32_t first = 0; first < args.dim; first += kLongColumns) {
    const uint32_t column = first + lane * kWidth;
    const bool sums = threadIdx.x < kLongColumns && first + threadIdx.x < args.dim;
    float sum = 0.0f;  // of the column first + threadIdx.x
    for (uint32_t k = begin; k < end; k += kLongRun) {
      Floats<kWidth> rows[kEach] = {};
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t at = k + i * kGroups + group;
        if (at >= end || column >= args.dim) continue;
        const Item item = items[at];
        rows[i] = Load<kWidth>(GradientOf(args, item) + column);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) rows[i].of[j] = item.gain * rows[i].of[j];
      }
      __syncthreads();  // the previous values have been added
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        *reinterpret_cast<Floats<kWidth>*>(&terms[i * kGroups + group][lane * kWidth]) = rows[i];
      }
      __syncthreads();
      const uint32_t count = end - k < kLongRun ? end - k : kLongRun;
#pragma unroll 8
      for (uint32_t i = 0; sums && i < count; ++i) sum += terms[i][threadIdx.x];
    }
    if (!sums) continue;
    const uint64_t at = At(part, key, args.dim) + first + threadIdx.x;
    UpdateRow<OneRule>(args, part, at, Floats<1>{{sum}});
  }
}

// Updates each row once. The threads of a row's first item do the work, or a block if the run is
// long.
template <class OneRule, int kWidth>
__device__ inline void Update(const UpdateArgs& args) {
  if (Failed(args.staged)) return;
  if (blockIdx.x < args.long_blocks) return UpdateLong<OneRule, kWidth>(args);
  const uint32_t lanes = LanesOf((args.dim + kWidth - 1) / kWidth);
  const uint32_t begin = args.begin + (blockIdx.x - args.long_blocks) * (kThreads / lanes) +
                         threadIdx.x / lanes;
  if (begin >= args.end) return;
  const uint32_t key = args.items[begin].key;
  if (begin > args.begin && args.items[begin - 1].key == key) return;
  if (IsLong(args, begin)) return;
  uint32_t end = begin + 1;
  while (end < args.end && args.items[end].key == key) ++end;
  const PartAt& part = PartOf(args.staged.parts, args.first_part, args.end_part, key);
  if (key == part.end_key) return;
  for (uint32_t column = threadIdx.x % lanes * kWidth; column < args.dim;
       column += lanes * kWidth) {
    if (args.cores_per_shard > 0) {
      UpdateByCore<OneRule, kWidth>(args, part, begin, end, column);
    } else {
      const Floats<kWidth> sum = SumOf<kWidth>(args, begin, end, column);
      UpdateRow<OneRule>(args, part, At(part, key, args.dim) + column, sum);
    }
  }
}

// Reads the batches of all pieces, which are on the GPU; gridDim.y is the number of pieces.
extern "C" __global__ void read_batch(const ReadArgs args) {
  const PieceAt& piece = args.staged.pieces[blockIdx.y];
  const RawAt& raw = args.staged.raws[blockIdx.y];
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (raw.num_splits > at) ReadSplit(args.staged, piece, raw, at);
  if (at < piece.count) ReadId(args.staged, piece, raw, at);
}

// Computes the gains of all pieces after `read_batch`.
extern "C" __global__ void scale_gains(const ReadArgs args) {
  const PieceAt& piece = args.staged.pieces[blockIdx.y];
  const RawAt& raw = args.staged.raws[blockIdx.y];
  const uint32_t cell = blockIdx.x * kThreads + threadIdx.x;
  if (piece.gains == Gains::kNone || raw.combiner == Combiner::kSum || cell >= piece.filled) return;
  ScaleGains(args.staged, piece, raw, cell);
}

// Computes the activations of all pieces; gridDim.y is the number of pieces.
extern "C" __global__ void look_up(const LookUpArgs args) {
  if (args.report != nullptr && Failed(args.staged) &&
      blockIdx.x + blockIdx.y + threadIdx.x == 0) {
    Tell(args.staged, args.report, args.op);
  }
  const PieceAt piece = args.staged.pieces[blockIdx.y];
  if (piece.by_fours) {
    LookUp<4>(args.staged, piece);
  } else {
    LookUp<1>(args.staged, piece);
  }
}

// Creates the items of all pieces; gridDim.y is the number of pieces.
extern "C" __global__ void make_items(const ItemsArgs args) {
  const PieceAt piece = args.staged.pieces[blockIdx.y];
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= piece.count || Failed(args.staged)) return;
  const uint32_t* cells = args.staged.cells + piece.first_cell;
  uint32_t cell = at;
  if (piece.layout == Layout::kCells) cell = cells[at];
  if (piece.layout == Layout::kSplits) {
    const auto is_beyond = [&](uint32_t i) { return cells[i] > at; };
    cell = FirstBeyond(0, piece.filled, is_beyond) - 1;
  }
  float gain = 1.0f;
  if (piece.gains != Gains::kNone) {
    gain = args.staged.gains[piece.first_gain + (piece.gains == Gains::kOfIds ? at : cell)];
  }
  args.items[piece.first + at] = {args.staged.keys[piece.first + at], gain, blockIdx.y, cell};
}

// Counts each value of the digit in the chunk of each block.
extern "C" __global__ void count_digits(const SortArgs args) {
  __shared__ uint32_t counts[kDigits];
  counts[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t begin = blockIdx.x * args.chunk;
  const uint32_t end = begin + args.chunk < args.count ? begin + args.chunk : args.count;
  for (uint32_t at = begin + threadIdx.x; at < end; at += kThreads) {
    atomicAdd(&counts[DigitOf(args, at)], 1u);
  }
  __syncthreads();
  args.counts[blockIdx.x * kDigits + threadIdx.x] = counts[threadIdx.x];
}

// Moves the items of each block's chunk to the places that their digits determine. Equal digits
// stay in order.
extern "C" __global__ void move_items(const SortArgs args) {
  __shared__ uint32_t next[kDigits];
  __shared__ uint32_t of_warp[kWarps][kDigits];
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t total = 0, in_blocks_before = 0;
#pragma unroll 8
  for (uint32_t block = 0; block < args.blocks; ++block) {
    const uint32_t count = args.counts[block * kDigits + threadIdx.x];
    total += count;
    if (block < blockIdx.x) in_blocks_before += count;
  }
  const uint32_t start = Before(total, next) + in_blocks_before;
  __syncthreads();
  next[threadIdx.x] = start;
  const uint32_t begin = blockIdx.x * args.chunk;
  const uint32_t end = begin + args.chunk < args.count ? begin + args.chunk : args.count;
  constexpr uint32_t kEach = kTile / kThreads;
  for (uint32_t tile = begin; tile < end; tile += kTile) {
    for (uint32_t w = 0; w < kWarps; ++w) of_warp[w][threadIdx.x] = 0;
    __syncthreads();
    uint32_t digits[kEach], ranks[kEach];
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t at = tile + (warp * kEach + i) * kWarp + lane;
      digits[i] = at < end ? DigitOf(args, at) : 0;
      const uint32_t same = SameDigit(digits[i], at < end);
      const uint32_t before = __popc(same & ((1u << lane) - 1));
      ranks[i] = of_warp[warp][digits[i]] + before;
      __syncwarp();
      if (at < end && before == 0) of_warp[warp][digits[i]] += __popc(same);
      __syncwarp();
    }
    __syncthreads();
    uint32_t at_digit = next[threadIdx.x];
    for (uint32_t w = 0; w < kWarps; ++w) {
      const uint32_t count = of_warp[w][threadIdx.x];
      of_warp[w][threadIdx.x] = at_digit;
      at_digit += count;
    }
    next[threadIdx.x] = at_digit;
    __syncthreads();
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t at = tile + (warp * kEach + i) * kWarp + lane;
      if (at < end) args.to[of_warp[warp][digits[i]] + ranks[i]] = args.from[at];
    }
    __syncthreads();
  }
}

}  // namespace gpu
}  // namespace estimator_bridge

// Creates two kernels for each rule that is included after this: one for rows that are read and
// written four floats at a time, and one for other rows.
#define TF2_ENGINE_UPDATE_KERNELS(RULE)                                                     \
  extern "C" __global__ void update_##RULE##_4(const gpu::UpdateArgs args) {                \
    if constexpr (RULE::kTrains) gpu::Update<RULE, 4>(args);                                \
  }                                                                                         \
  extern "C" __global__ void update_##RULE##_1(const gpu::UpdateArgs args) {                \
    if constexpr (RULE::kTrains) gpu::Update<RULE, 1>(args);                                \
  }                                                                                         \
  static_assert(true, "")
#undef TF2_ENGINE_RULE
#define TF2_ENGINE_RULE TF2_ENGINE_UPDATE_KERNELS
