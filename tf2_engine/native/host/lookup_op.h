// Computes activations from ids, cells and gains: the kernel of `look_up` in
// backends/host/kernels.py.

#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "host/arguments.h"
#include "host/rows.h"
#include "host/sums.h"
#include "host/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

// The number of ids per task: small enough that all threads have about the same work.
constexpr int64_t kLookupChunk = 8192;

// The number of ids to prefetch ahead. The number of bytes is the same for every width, because a
// core can wait only for a certain number of cache lines at a time.
constexpr int64_t LookupAhead(int64_t dim) {
  constexpr int64_t kBytes = 4096, kLeast = 4, kMost = 64;
  return std::min(std::max(kBytes / (dim * static_cast<int64_t>(sizeof(float))), kLeast), kMost);
}

// The rows of some ids, for `SumRows`. The width is `kDim`, or variable if `kDim` is 0.
template <GainsOf kGainsOf, bool kOneShard, int64_t kDim = 0>
struct TableRows {
  static constexpr bool kGains = kGainsOf != GainsOf::kNone;

  // The row of an id. If the table has no such row, returns any row and sets `outside`.
  const float* Row(int64_t k) {
    if (!kOneShard || __builtin_expect(IsBelow(ids[k], limit), true)) return Find(ids[k]);
    outside = true;
    return first;
  }
  __attribute__((always_inline)) inline void Ask(int64_t k) const {
    const int64_t then = k + LookupAhead(dim());
    if (then < end) Prefetch<false>(Find(ids[then]), dim());
  }
  float Gain(int64_t k) const { return kGainsOf == GainsOf::kCells ? *gain : gain[k]; }
  const float* Find(int64_t id) const {
    if (kOneShard) return first + id * dim();
    int64_t shard, row;
    placement->Find(id, &shard, &row);
    return shards[shard] + row * dim();
  }
  int64_t dim() const { return kDim > 0 ? kDim : any_dim; }

  const int64_t* ids;
  const float* gain;  // the gains of the ids, or the gain of the current cell
  int64_t end;
  float* const* shards;
  const float* first;  // the rows of the first shard
  const Placement* placement;
  int64_t any_dim;
  int64_t limit;  // the ids' upper bound (exclusive), if there is one shard
  bool outside = false;
};

// Sums the rows of pieces. Subclasses provide the rows.
class SumOp : public tensorflow::OpKernel {
 public:
  explicit SumOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_pieces;
    OP_REQUIRES_OK(context, GetAttributes(context, "num_pieces", &num_pieces,
                                          "num_shards", &num_shards_, "dims", &dims_,
                                          "table_of", &table_of_, "sizes", &sizes_,
                                          "where", &where_));
    const size_t tables = dims_.size(), pieces = static_cast<size_t>(num_pieces);
    OP_REQUIRES(context, num_shards_ >= 1,
                errors::InvalidArgument("There must be at least one shard."));
    OP_REQUIRES(context,
                table_of_.size() == pieces && sizes_.size() == pieces && where_.size() == pieces,
                errors::InvalidArgument("table_of, sizes and where must have one entry per piece."));
    for (const int64_t table : table_of_) {
      OP_REQUIRES(context, table >= 0 && static_cast<size_t>(table) < tables,
                  errors::InvalidArgument("There is no table ", table, "."));
    }
    for (const int64_t dim : dims_) {
      OP_REQUIRES(context, dim >= 1, errors::InvalidArgument("dims must be positive."));
    }
  }

 protected:
  // Checks that some ids of a piece are rows of its table.
  using CheckRows = std::function<absl::Status(int64_t table, const int64_t* ids, int64_t count,
                                               const std::string& where)>;

  int64_t num_tables() const { return static_cast<int64_t>(dims_.size()); }

  // Writes the activations.
  //
  // Args:
  //   shards: the rows of the tables, `num_shards` shards for each, as in the table's placement.
  //   counts: the number of rows of each shard.
  void Sum(OpKernelContext* context, const std::vector<float*>& shards,
           const std::vector<int64_t>& counts, const std::vector<Placement>& placements,
           const CheckRows& check) {
    tensorflow::OpInputList ids, cells, gains, num_cells;
    OP_REQUIRES_OK(context, GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                     "num_cells", &num_cells));
    const int count = static_cast<int>(table_of_.size());
    std::vector<Job> jobs(count);
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
      Job& job = jobs[i];
      OP_REQUIRES_OK(context, job.piece.Read(ids[i], cells[i], gains[i], where_[i]));
      OP_REQUIRES(context, num_cells[i].NumElements() == 1,
                  errors::InvalidArgument(where_[i], ": num_cells must be one number."));
      job.cells = num_cells[i].flat<int64_t>()(0);
      OP_REQUIRES_OK(context, job.piece.CheckNumCells(job.cells, where_[i]));
      job.dim = dims_[table_of_[i]];
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK(context, ShapeOf(i, job.cells, &shape));
      Tensor output;
      OP_REQUIRES_OK(context, kept_.Get(context, i, tensorflow::DT_FLOAT, shape, &output));
      job.out = output.flat<float>().data();
      context->set_output(i, output);
      total += job.piece.count;
    }
    std::vector<Task> tasks;
    for (int i = 0; i < count; ++i) AddTasks(i, jobs[i], &tasks);
    const int64_t num_tasks = static_cast<int64_t>(tasks.size());
    OP_REQUIRES_OK(context, TryInParallel(context, num_tasks, total, [&](int64_t t) -> absl::Status {
      const Task& task = tasks[t];
      const Job& job = jobs[task.job];
      const int64_t table = table_of_[task.job];
      const Occurrences& piece = job.piece;
      const std::string& where = where_[task.job];
      const auto check_ids = [&] {
        return check(table, piece.ids + task.begin, task.end - task.begin, where);
      };
      TF_RETURN_IF_ERROR(piece.CheckCells(task.begin, task.end, task.first, task.last, where));
      if (num_shards_ > 1 || counts[table] == 0) TF_RETURN_IF_ERROR(check_ids());
      const Source from{&shards[table * num_shards_], &placements[table], counts[table]};
      if (num_shards_ == 1) {
        // The check returns the error message.
        return Run<true>(job, task, from) ? absl::OkStatus() : check_ids();
      }
      Run<false>(job, task, from);
      return absl::OkStatus();
    }));
  }

 private:
  struct Job {
    Occurrences piece;
    int64_t cells = 0, dim = 0;
    float* out = nullptr;
  };
  // The occurrences begin..end of a job, which are all occurrences of the cells first..last.
  struct Task {
    int job;
    int64_t begin, end, first, last;
  };

  // The place of a table's rows. With one shard, ids are checked against `limit` while they are
  // read: a separate check would take another tenth of the time of the sums.
  struct Source {
    float* const* shards;
    const Placement* placement;
    int64_t limit;
  };

  // A cell is never split between tasks, so sums do not depend on the number of tasks. Cells are
  // not checked yet, but the cells of a task are always within range.
  static void AddTasks(int number, const Job& job, std::vector<Task>* tasks) {
    const Occurrences& piece = job.piece;
    if (piece.splits != nullptr) {
      AddTasksOfSplits(number, job, tasks);
      return;
    }
    if (piece.count < 2 * kLookupChunk ||
        (piece.cell != nullptr && !std::is_sorted(piece.cell, piece.cell + piece.count))) {
      tasks->push_back({number, 0, piece.count, 0, job.cells});
      return;
    }
    int64_t begin = 0, first = 0;
    while (begin < piece.count) {
      int64_t end = std::min(begin + kLookupChunk, piece.count);
      while (piece.cell != nullptr && end < piece.count &&
             piece.cell[end] == piece.cell[end - 1]) {
        ++end;
      }
      int64_t last = job.cells;
      if (end < piece.count) last = std::min(last, piece.cell == nullptr ? end : piece.cell[end]);
      tasks->push_back({number, begin, end, first, last});
      begin = end;
      first = last;
    }
  }

  static void AddTasksOfSplits(int number, const Job& job, std::vector<Task>* tasks) {
    const int64_t* splits = job.piece.splits;
    const int64_t* end = splits + job.piece.num_splits;
    for (const int64_t* at = splits; at + 1 < end;) {
      const int64_t* next = std::min(std::lower_bound(at + 1, end, *at + kLookupChunk), end - 1);
      tasks->push_back({number, *at, *next, at - splits, next - splits});
      at = next;
    }
    const int64_t count = job.piece.count, cells = job.piece.num_cells();
    if (cells < job.cells) tasks->push_back({number, count, count, cells, job.cells});
  }

  // Whether all ids are rows of the table.
  template <bool kOneShard>
  static bool Run(const Job& job, const Task& task, const Source& from) {
    const Occurrences& piece = job.piece;
    if (piece.cell != nullptr || piece.gains == GainsOf::kIds) {
      return piece.gain == nullptr
                 ? SumCells(RowsOf<GainsOf::kNone, kOneShard>(job, task, from), job, task)
                 : SumCells(RowsOf<GainsOf::kIds, kOneShard>(job, task, from), job, task);
    }
    // In order of the cells. Cells after the last id have no ids.
    const int64_t last = piece.splits == nullptr ? task.end : std::min(task.last, piece.num_cells());
    Clear(job.out + last * job.dim, (task.last - last) * job.dim);
    return WithWidth(kOneShard ? job.dim : 0, [&](auto width) {
      constexpr int64_t kDim = decltype(width)::value;
      const auto rows = RowsOf<GainsOf::kNone, kOneShard, kDim>(job, task, from);
      if (piece.splits == nullptr) return SumOnes(rows, task.begin, job.out);
      if (piece.gain == nullptr) return SumBags(rows, piece.splits, task.first, last, job.out);
      return SumBags(RowsOf<GainsOf::kCells, kOneShard, kDim>(job, task, from), piece.splits,
                     task.first, last, job.out);
    });
  }

  template <GainsOf kGains, bool kOneShard, int64_t kDim = 0>
  static TableRows<kGains, kOneShard, kDim> RowsOf(const Job& job, const Task& task,
                                                   const Source& from) {
    return {job.piece.ids, job.piece.gain, task.end, from.shards,
            from.shards[0], from.placement, job.dim, from.limit};
  }

  // For cells with one id each: the row of the id, plus 0 as in any sum.
  template <class Rows>
  static bool SumOnes(Rows rows, int64_t first, float* out) {
    for (int64_t k = first; k < rows.end; ++k) {
      SumRows(rows, k, k + 1, rows.dim(), true, out + k * rows.dim());
    }
    return !rows.outside;
  }

  // For cells whose ids lie between row splits.
  template <class Rows>
  static bool SumBags(Rows rows, const int64_t* splits, int64_t first, int64_t last, float* out) {
    const float* gains = rows.gain;
    int64_t begin = splits[first];
    for (int64_t cell = first; cell < last; ++cell) {
      const int64_t end = splits[cell + 1];
      if (Rows::kGains) rows.gain = gains + cell;
      SumRows(rows, begin, end, rows.dim(), true, out + cell * rows.dim());
      begin = end;
    }
    return !rows.outside;
  }

  // For cells that are given per id, or cells with one id each.
  template <class Rows>
  static bool SumCells(Rows rows, const Job& job, const Task& task) {
    const Occurrences& piece = job.piece;
    const int64_t dim = job.dim;
    int64_t next = task.first;  // the cells before it are computed
    for (int64_t begin = task.begin; begin < task.end;) {
      int64_t end = begin + 1;
      int64_t cell = begin;
      if (piece.cell != nullptr) {
        cell = piece.cell[begin];
        while (end < task.end && piece.cell[end] == cell) ++end;
      }
      const bool fresh = cell >= next;
      if (fresh) {
        Clear(job.out + next * dim, (cell - next) * dim);
        next = cell + 1;
      }
      SumRows(rows, begin, end, dim, fresh, job.out + cell * dim);
      begin = end;
    }
    Clear(job.out + next * dim, (task.last - next) * dim);
    return !rows.outside;
  }

  static void Clear(float* from, int64_t count) {
    if (count > 0) std::memset(from, 0, static_cast<size_t>(count) * sizeof(float));
  }

  std::vector<tensorflow::PartialTensorShape> sizes_;
  KeptTensors kept_;

 protected:
  // Sets the shape of an activation.
  absl::Status ShapeOf(int i, int64_t cells, tensorflow::TensorShape* shape) const {
    int64_t rest = 1;
    for (int axis = 1; axis < sizes_[i].dims(); ++axis) rest *= sizes_[i].dim_size(axis);
    const int64_t samples = sizes_[i].dims() > 0 && rest > 0 ? cells / rest : -1;
    if (cells < 0 || samples < 0 || samples * rest != cells ||
        (sizes_[i].dim_size(0) >= 0 && sizes_[i].dim_size(0) != samples)) {
      return errors::InvalidArgument(where_[i], ": ", cells, " cells do not fill an activation of ",
                                     sizes_[i].DebugString(), ".");
    }
    TF_RETURN_IF_ERROR(shape->AddDimWithStatus(samples));
    for (int axis = 1; axis < sizes_[i].dims(); ++axis) {
      TF_RETURN_IF_ERROR(shape->AddDimWithStatus(sizes_[i].dim_size(axis)));
    }
    return shape->AddDimWithStatus(dims_[table_of_[i]]);
  }

  int64_t num_shards_ = 1;
  std::vector<int64_t> dims_, table_of_;
  std::vector<std::string> where_;
};

// Looks rows up in variables.
class LookupOp : public SumOp {
 public:
  explicit LookupOp(OpKernelConstruction* context) : SumOp(context) {
    std::string strategy;
    int num_variables;
    OP_REQUIRES_OK(context, GetAttributes(context, "num_variables", &num_variables,
                                          "strategy", &strategy, "rows", &rows_));
    OP_REQUIRES(context,
                num_variables == num_tables() * num_shards_ && rows_.size() == dims_.size(),
                errors::InvalidArgument("There must be one variable per table and shard."));
    for (size_t table = 0; table < rows_.size(); ++table) {
      OP_REQUIRES(context, rows_[table] >= 1, errors::InvalidArgument("rows must be positive."));
      placements_.emplace_back(rows_[table], num_shards_, strategy == "mod");
      for (int64_t shard = 0; shard < num_shards_; ++shard) {
        shapes_.push_back({placements_[table].RowsOf(shard), dims_[table]});
      }
    }
  }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(LockedVariables::Access::kRead);
    std::vector<float*> shards;
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &shards));
    huge_.See(context, shards, shapes_);
    std::vector<int64_t> counts;
    for (const VariableShape& shape : shapes_) counts.push_back(shape.rows);
    Sum(context, shards, counts, placements_,
        [this](int64_t table, const int64_t* ids, int64_t count, const std::string& where) {
          return CheckIds(ids, count, rows_[table], where);
        });
  }

 protected:
  std::vector<VariableShape> shapes_;
  std::vector<Placement> placements_;
  std::vector<int64_t> rows_;

 private:
  HugeTables huge_;
};

}  // namespace estimator_bridge
