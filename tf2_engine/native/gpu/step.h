// The buffers and kernel launches of a step on a GPU. Plain C++17, no TensorFlow.
//
// If the batch is on the host, the host reads and checks the ids. It writes them, with a
// description of the batch, into one buffer, which is copied to the GPU as a whole. If the batch is
// on the GPU, only the description is copied; the GPU reads and checks the ids. In both cases, the
// host knows the number of ids of each table, so it launches enough threads without reading
// anything back.

#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/args.h"
#include "host/placement.h"
#include "host/rows.h"
#include "rules/optimizer.h"

namespace estimator_bridge {
namespace gpu {

// Launches kernels on a stream of a GPU, or on a CPU in tests. Returns an error message, or an
// empty string.
class Launcher {
 public:
  // Runs a kernel in x times y blocks of kThreads threads, with one argument.
  virtual std::string Launch(const std::string& kernel, uint32_t x, uint32_t y,
                             const void* args) = 0;

 protected:
  ~Launcher() = default;
};

// The occurrences of a feature on a core.
struct Occurrences : OccurrenceArrays {
  int64_t num_cells = 0, table = 0, core = 0;
  // If the batch is on the GPU: the batch, and how to store what is computed from it.
  std::optional<RawAt> raw = std::nullopt;
  Layout layout = Layout::kOnes;
  Gains gains = Gains::kNone;
};

// The tables of an op, and the order of their rows among all rows.
class Tables {
 public:
  struct Table {
    int64_t rows, dim;
    int num_slots = 0;
    int64_t group = 0;  // tables of a group are updated together; groups count from 0
    Placement placement;
    uint32_t first_part = 0;
  };

  Tables(std::vector<Table> tables, int64_t num_shards)
      : tables_(std::move(tables)), num_shards_(num_shards), by_group_(tables_.size()) {
    for (size_t t = 0; t < tables_.size(); ++t) by_group_[t] = t;
    std::stable_sort(by_group_.begin(), by_group_.end(), [this](size_t one, size_t other) {
      return tables_[one].group < tables_[other].group;
    });
    for (const size_t t : by_group_) {
      tables_[t].first_part = static_cast<uint32_t>(first_keys_.size());
      for (int64_t shard = 0; shard < num_shards; ++shard) {
        first_keys_.push_back(static_cast<uint32_t>(num_keys_));
        num_keys_ += tables_[t].placement.RowsOf(shard);
        end_keys_.push_back(static_cast<uint32_t>(num_keys_));
      }
      ++num_keys_;  // for occurrences that are left out
    }
  }

  const Table& operator[](int64_t t) const { return tables_[t]; }
  const std::vector<size_t>& by_group() const { return by_group_; }
  uint32_t num_shards() const { return static_cast<uint32_t>(num_shards_); }
  uint32_t num_parts() const { return static_cast<uint32_t>(first_keys_.size()); }
  int64_t num_keys() const { return num_keys_; }
  uint32_t first_key(int64_t part) const { return first_keys_[part]; }

  // Args:
  //   variables: for each table, the shards of the parameters, then the shards of each slot.
  //   stored: how each variable is stored; empty if all are float32.
  std::vector<PartAt> Parts(const std::vector<float*>& variables,
                            const std::vector<Stored>& stored = {}) const {
    std::vector<PartAt> parts(num_parts());
    size_t next = 0;
    for (const Table& table : tables_) {
      for (int s = 0; s <= table.num_slots; ++s) {
        for (int64_t shard = 0; shard < num_shards_; ++shard) {
          PartAt& part = parts[table.first_part + shard];
          if (s == 0) part.stored = stored.empty() ? Stored::kFloat32 : stored[next];
          part.rows[s] = variables[next++];
        }
      }
    }
    for (uint32_t i = 0; i < num_parts(); ++i) {
      parts[i].first_key = first_keys_[i];
      parts[i].end_key = end_keys_[i];
      parts[i].shard = i % num_shards();
    }
    return parts;
  }

 private:
  std::vector<Table> tables_;
  int64_t num_shards_, num_keys_ = 0;
  std::vector<size_t> by_group_;
  std::vector<uint32_t> first_keys_, end_keys_;
};

// A batch to copy to the GPU. First `Describe` it and, unless the batch is on the GPU already,
// `Write` all pieces, in any order or concurrently. Then copy `bytes_to_copy()` bytes from the
// buffer.
class Batch {
 public:
  enum class Invalid { kNone, kId, kCell };

  // Args:
  //   in_order: whether ids keep their order, as sums of gradients require. Otherwise they are
  //     sorted by cell.
  Batch(const Tables& tables, const std::vector<Occurrences>& pieces,
        const std::vector<float*>& data, const std::vector<PartAt>& parts, bool in_order)
      : tables_(tables), pieces_(pieces), parts_(parts) {
    uint32_t cells = 0, gains = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Occurrences& piece = pieces[i];
      const Tables::Table& table = tables[piece.table];
      PieceAt at = {};
      at.data = data[i];
      at.first = count_;
      at.count = static_cast<uint32_t>(piece.count);
      at.num_cells = static_cast<uint32_t>(piece.num_cells);
      at.first_cell = cells;
      at.filled = at.num_cells;
      if (piece.raw) {
        at.layout = piece.layout;
        if (at.layout == Layout::kSplits) at.filled = piece.raw->num_rows;
        if (at.layout == Layout::kSplits) cells += at.filled + 1;
        if (at.layout == Layout::kCells) cells += at.count;
        raws_.push_back(*piece.raw);
      } else if (piece.splits != nullptr) {
        at.layout = Layout::kSplits;
        at.filled = static_cast<uint32_t>(piece.num_splits - 1);
        cells += at.filled + 1;
      } else if (piece.cell != nullptr) {
        at.layout = in_order ? Layout::kCells : Layout::kSplits;
        cells += in_order ? at.count : at.num_cells + 1;
      } else {
        at.filled = at.count;
      }
      at.gains = piece.raw                   ? piece.gains
                 : piece.gain == nullptr     ? Gains::kNone
                 : piece.splits == nullptr   ? Gains::kOfIds
                                             : Gains::kOfCells;
      at.first_gain = gains;
      if (at.gains != Gains::kNone) gains += at.gains == Gains::kOfIds ? at.count : at.filled;
      at.dim = static_cast<uint32_t>(table.dim);
      at.core = static_cast<uint32_t>(piece.core);
      at.first_part = table.first_part;
      at.end_part = table.first_part + tables.num_shards();
      at.by_fours = ByFours(table, at.data);
      count_ += at.count;
      at_.push_back(at);
    }
    num_cells_ = cells;
    num_gains_ = gains;
  }

  uint32_t count() const { return count_; }
  const std::vector<PieceAt>& pieces() const { return at_; }
  const std::vector<RawAt>& raws() const { return raws_; }
  bool fits() const {
    uint64_t ids = 0, cells = 0;
    for (const Occurrences& piece : pieces_) {
      ids += piece.count;
      cells += piece.num_cells + piece.num_splits + 1;
    }
    constexpr uint64_t kMost = uint64_t{1} << 31;
    return ids < kMost && ids + cells < kMost &&
           static_cast<uint64_t>(tables_.num_keys()) < kMost;
  }
  // Whether rows of a table, and of data, can be read four floats at a time.
  bool ByFours(const Tables::Table& table, const float* data) const {
    bool by_fours = table.dim % 4 == 0 && IsAligned(data);
    for (uint32_t i = 0; i < tables_.num_shards(); ++i) {
      const PartAt& part = parts_[table.first_part + i];
      for (int s = 0; s <= table.num_slots; ++s) by_fours = by_fours && IsAligned(part.rows[s]);
    }
    return by_fours;
  }

  // Whether the batch is on the GPU.
  bool is_raw() const { return !raws_.empty(); }
  size_t bytes() const { return GainsAt() + num_gains_ * sizeof(float); }
  size_t bytes_to_copy() const { return is_raw() ? KeysAt() : bytes(); }
  Staged At(char* base) const {
    Staged staged = {reinterpret_cast<const PieceAt*>(base),
                     reinterpret_cast<const PartAt*>(base + PartsAt()),
                     reinterpret_cast<const uint32_t*>(base + KeysAt()),
                     reinterpret_cast<const uint32_t*>(base + KeysAt()) + count_,
                     reinterpret_cast<const float*>(base + GainsAt()),
                     nullptr,
                     nullptr};
    if (is_raw()) {
      staged.raws = reinterpret_cast<const RawAt*>(base + RawsAt());
      staged.problem = reinterpret_cast<Problem*>(base + ProblemAt());
    }
    return staged;
  }

  // Writes the data that do not belong to a single piece.
  void Describe(char* base) const {
    std::memcpy(base, at_.data(), at_.size() * sizeof(PieceAt));
    std::memcpy(base + PartsAt(), parts_.data(), parts_.size() * sizeof(PartAt));
    if (!is_raw()) return;
    std::memcpy(base + RawsAt(), raws_.data(), raws_.size() * sizeof(RawAt));
    std::memcpy(base + ProblemAt(), &kNoProblem, sizeof(Problem));
  }

  // Writes the ids, cells and gains of a piece; reports invalid ones.
  Invalid Write(size_t number, char* base) const {
    const Occurrences& piece = pieces_[number];
    const PieceAt& at = at_[number];
    const Staged staged = At(base);
    uint32_t* const keys = const_cast<uint32_t*>(staged.keys) + at.first;
    uint32_t* const cells = const_cast<uint32_t*>(staged.cells) + at.first_cell;
    float* const gains = const_cast<float*>(staged.gains) + at.first_gain;
    const Tables::Table& table = tables_[piece.table];
    // The common bits of the ids, and the largest remainder: one pass, in vectors.
    uint64_t bits = 0;
    uint32_t largest = 0;
    const uint32_t first = tables_.first_key(table.first_part);
    for (int64_t i = 0; i < piece.count; ++i) {
      const auto id = static_cast<uint32_t>(piece.ids[i]);
      bits |= static_cast<uint64_t>(piece.ids[i]);
      largest = std::max(largest, id);
      keys[i] = first + id;
    }
    if (bits >> 32 != 0 || (piece.count > 0 && largest >= table.rows)) return Invalid::kId;
    if (!CellsFit(piece)) return Invalid::kCell;
    if (piece.cell != nullptr && at.layout == Layout::kSplits) {
      WriteByCell(piece, at, keys, cells, gains);
      return Invalid::kNone;
    }
    if (tables_.num_shards() > 1) {
      for (int64_t i = 0; i < piece.count; ++i) keys[i] = KeyOf(table, piece.ids[i]);
    }
    if (piece.splits != nullptr) std::copy(piece.splits, piece.splits + piece.num_splits, cells);
    if (piece.cell != nullptr) std::copy(piece.cell, piece.cell + piece.count, cells);
    const int64_t num_gains = at.gains == Gains::kOfCells ? at.filled : piece.count;
    if (piece.gain != nullptr) std::copy(piece.gain, piece.gain + num_gains, gains);
    return Invalid::kNone;
  }

 private:
  static bool IsAligned(const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

  size_t PartsAt() const { return at_.size() * sizeof(PieceAt); }
  size_t RawsAt() const { return PartsAt() + parts_.size() * sizeof(PartAt); }
  size_t ProblemAt() const { return RawsAt() + raws_.size() * sizeof(RawAt); }
  size_t KeysAt() const { return ProblemAt() + (is_raw() ? sizeof(Problem) : 0); }
  size_t GainsAt() const { return KeysAt() + (size_t{count_} + num_cells_) * sizeof(uint32_t); }

  static bool CellsFit(const Occurrences& piece) {
    if (piece.cell == nullptr) {
      return (piece.splits == nullptr ? piece.count : piece.num_splits - 1) <= piece.num_cells;
    }
    bool outside = false;
    for (int64_t i = 0; i < piece.count; ++i) {
      outside |= static_cast<uint64_t>(piece.cell[i]) >= static_cast<uint64_t>(piece.num_cells);
    }
    return !outside;
  }

  uint32_t KeyOf(const Tables::Table& table, int64_t id) const {
    int64_t shard, row;
    table.placement.Find(id, &shard, &row);
    return tables_.first_key(table.first_part + shard) + static_cast<uint32_t>(row);
  }

  // Writes occurrences sorted by cell. Within a cell they keep their order.
  void WriteByCell(const Occurrences& piece, const PieceAt& at, uint32_t* keys, uint32_t* splits,
                   float* gains) const {
    const Tables::Table& table = tables_[piece.table];
    std::fill(splits, splits + at.num_cells + 1, 0);
    for (int64_t i = 0; i < piece.count; ++i) ++splits[piece.cell[i] + 1];
    for (uint32_t cell = 0; cell < at.num_cells; ++cell) splits[cell + 1] += splits[cell];
    std::vector<uint32_t> next(splits, splits + at.num_cells);
    for (int64_t i = 0; i < piece.count; ++i) {
      const uint32_t to = next[piece.cell[i]]++;
      keys[to] = KeyOf(table, piece.ids[i]);
      if (piece.gain != nullptr) gains[to] = piece.gain[i];
    }
  }

  const Tables& tables_;
  const std::vector<Occurrences>& pieces_;
  const std::vector<PartAt>& parts_;
  std::vector<PieceAt> at_;
  std::vector<RawAt> raws_;
  uint32_t count_ = 0, num_cells_ = 0, num_gains_ = 0;
};

inline uint32_t Blocks(uint64_t count, uint32_t of_each) {
  return static_cast<uint32_t>((count + of_each - 1) / of_each);
}

// The number of rows that the threads of a block process at a time; see `LanesOf` in gpu/kernels.h.
inline uint32_t RowsOfBlock(uint32_t dim, bool by_fours) {
  const uint32_t width = by_fours ? dim / 4 : dim;
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < width) lanes *= 2;
  return kThreads / lanes;
}

// Reads a batch that is on the GPU. Does nothing if the host has read it.
inline std::string Read(Launcher* launcher, const Batch& batch, const Staged& staged) {
  uint32_t most = 0, most_cells = 0;
  for (size_t i = 0; batch.is_raw() && i < batch.pieces().size(); ++i) {
    const PieceAt& piece = batch.pieces()[i];
    const RawAt& raw = batch.raws()[i];
    most = std::max({most, piece.count, raw.num_splits});
    const bool scales = piece.gains != Gains::kNone && raw.combiner != Combiner::kSum;
    if (scales) most_cells = std::max(most_cells, piece.filled);
  }
  const ReadArgs args{staged};
  const auto pieces = static_cast<uint32_t>(batch.pieces().size());
  std::string error;
  if (most > 0) error = launcher->Launch("read_batch", Blocks(most, kThreads), pieces, &args);
  if (most_cells > 0 && error.empty()) {
    error = launcher->Launch("scale_gains", Blocks(most_cells, kThreads), pieces, &args);
  }
  return error;
}

inline std::string LookUp(Launcher* launcher, const Batch& batch, const Staged& staged,
                          Report* report, uint32_t op) {
  uint32_t blocks = batch.is_raw() ? 1 : 0;  // to report ids that belong to no cell
  for (const PieceAt& piece : batch.pieces()) {
    blocks = std::max(blocks, Blocks(piece.num_cells, RowsOfBlock(piece.dim, piece.by_fours)));
  }
  if (blocks == 0) return "";
  const LookUpArgs args{staged, report, op};
  return launcher->Launch("look_up", blocks, static_cast<uint32_t>(batch.pieces().size()), &args);
}

// Sorts the occurrences of a batch by row, and updates the rows.
class UpdateStep {
 public:
  // Tables with the same width and optimizer.
  struct Group {
    Optimizer optimizer;
    int64_t dim;
    bool by_core;       // whether each core's sum is applied separately
    const float* rate;  // in GPU memory
  };

  UpdateStep(const Tables& tables, int64_t num_cores) : tables_(tables), num_cores_(num_cores) {}

  // The bytes of GPU memory that the step needs besides the batch.
  static size_t Bytes(uint32_t count) {
    return 2 * count * sizeof(Item) + kMostBlocks * kDigits * sizeof(uint32_t);
  }

  std::string Run(Launcher* launcher, const Batch& batch, const Staged& staged,
                  const std::vector<Group>& groups, char* memory) const {
    if (batch.count() == 0) return "";
    std::string error;
    const Item* items = Sort(launcher, batch, staged, memory, &error);
    const std::vector<uint32_t> counts = Counts(batch, groups.size());
    uint32_t begin = 0, part = 0;
    for (size_t g = 0; g < groups.size() && error.empty(); ++g) {
      UpdateArgs args = {};
      args.staged = staged;
      args.items = items;
      args.begin = begin;
      args.end = begin += counts[g];
      args.first_part = part;
      bool by_fours = true;
      for (const size_t t : tables_.by_group()) {
        const Tables::Table& table = tables_[t];
        if (table.group != static_cast<int64_t>(g)) continue;
        part += tables_.num_shards();
        by_fours = by_fours && batch.ByFours(table, nullptr);
      }
      for (const PieceAt& piece : batch.pieces()) {
        const bool is_of_group = piece.first_part >= args.first_part && piece.first_part < part;
        by_fours = by_fours && (piece.by_fours || !is_of_group);
      }
      args.end_part = part;
      if (args.begin < args.end) error = Update(launcher, groups[g], by_fours, &args);
    }
    return error;
  }

 private:
  static constexpr uint32_t kMostBlocks = 160;  // per pass, because each block reads all counts

  // Makes items and sorts them.
  const Item* Sort(Launcher* launcher, const Batch& batch, const Staged& staged, char* memory,
                   std::string* error) const {
    const uint32_t count = batch.count();
    Item* from = reinterpret_cast<Item*>(memory);
    Item* to = from + count;
    uint32_t most = 0;
    for (const PieceAt& piece : batch.pieces()) most = std::max(most, piece.count);
    const ItemsArgs items{staged, from};
    *error = launcher->Launch("make_items", Blocks(most, kThreads),
                              static_cast<uint32_t>(batch.pieces().size()), &items);
    const uint32_t tiles = Blocks(count, kTile);
    const uint32_t chunk = kTile * Blocks(tiles, kMostBlocks), blocks = Blocks(count, chunk);
    auto* counts = reinterpret_cast<uint32_t*>(to + count);
    for (uint32_t shift = 0; shift < 32 && tables_.num_keys() > int64_t{1} << shift; shift += 8) {
      const SortArgs args{from, to, counts, count, chunk, blocks, shift};
      if (error->empty()) *error = launcher->Launch("count_digits", blocks, 1, &args);
      if (error->empty()) *error = launcher->Launch("move_items", blocks, 1, &args);
      std::swap(from, to);
    }
    return from;
  }

  // The number of ids of each group.
  std::vector<uint32_t> Counts(const Batch& batch, size_t groups) const {
    std::vector<int64_t> group_of(tables_.num_parts());
    for (const size_t t : tables_.by_group()) group_of[tables_[t].first_part] = tables_[t].group;
    std::vector<uint32_t> counts(groups);
    for (const PieceAt& piece : batch.pieces()) counts[group_of[piece.first_part]] += piece.count;
    return counts;
  }

  std::string Update(Launcher* launcher, const Group& group, bool by_fours,
                     UpdateArgs* args) const {
    args->dim = static_cast<uint32_t>(group.dim);
    args->cores_per_shard =
        group.by_core ? static_cast<uint32_t>(num_cores_) / tables_.num_shards() : 0;
    args->rate = group.rate;
    args->shared = group.optimizer;
    const char* name = "";
    std::visit(
        [&](const auto& rule) {
          using OneRule = std::decay_t<decltype(rule)>;
          if constexpr (OneRule::kTrains) {
            static_assert(sizeof(rule) <= kMostSettings);
            std::memcpy(args->settings, &rule, sizeof(rule));
            name = RuleOfField<OneRule::kProtoField>::kName;
          }
        },
        group.optimizer.rule);
    const uint32_t count = args->end - args->begin;
    args->long_blocks = group.by_core ? 0 : Blocks(count, kLongRun);
    const uint32_t blocks =
        args->long_blocks + Blocks(count, RowsOfBlock(args->dim, by_fours));
    return launcher->Launch(std::string("update_") + name + (by_fours ? "_4" : "_1"), blocks, 1,
                            args);
  }

  const Tables& tables_;
  const int64_t num_cores_;
};

}  // namespace gpu
}  // namespace estimator_bridge
