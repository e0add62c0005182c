// From ids, cells and gains to activations: the kernel of backends/host/lookup.py.

#ifndef TF2_ENGINE_NATIVE_HOST_LOOKUP_OP_H_
#define TF2_ENGINE_NATIVE_HOST_LOOKUP_OP_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "host/bags.h"
#include "host/rows.h"
#include "host/sums.h"
#include "host/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

constexpr int64_t kLookupChunk = 8192;  // a smaller task is not worth to be handed out

// The rows of some ids, for `SumRows`.
template <GainsOf kGainsOf, bool kOneShard>
struct TableRows {
  static constexpr bool kGains = kGainsOf != GainsOf::kNone;

  const float* Row(int64_t k) const { return Find(ids[k]); }
  __attribute__((always_inline)) inline void Ask(int64_t k) const {
    if (k + ahead < end) Prefetch<false>(Find(ids[k + ahead]), dim);
  }
  float Gain(int64_t k) const { return kGainsOf == GainsOf::kCells ? *gain : gain[k]; }
  const float* Find(int64_t id) const {
    if (kOneShard) return first + id * dim;
    int64_t shard, row;
    placement->Find(id, &shard, &row);
    return shards[shard] + row * dim;
  }

  const int64_t* ids;
  const float* gain;  // of the ids, or that of the cell which is summed
  int64_t end;
  float* const* shards;
  const float* first;  // of the first shard
  const Placement* placement;
  int64_t dim, ahead;
};

// Sums the rows of pieces; where the rows are is for a class to say that inherits.
class SumOp : public tensorflow::OpKernel {
 public:
  explicit SumOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_pieces;
    OP_REQUIRES_OK(context, context->GetAttr("num_pieces", &num_pieces));
    OP_REQUIRES_OK(context, context->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, context->GetAttr("table_of", &table_of_));
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    OP_REQUIRES_OK(context, context->GetAttr("where", &where_));
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
  // Checks that some ids of a piece of a table are of rows that there are.
  using CheckRows = std::function<absl::Status(int64_t table, const int64_t* ids, int64_t count,
                                               const std::string& where)>;

  int64_t num_tables() const { return static_cast<int64_t>(dims_.size()); }

  // Writes the activations. The rows of a table are in `shards`, `num_shards` of them for each
  // table, where its placement finds them.
  void Sum(OpKernelContext* context, const std::vector<float*>& shards,
           const std::vector<Placement>& placements, const CheckRows& check) {
    tensorflow::OpInputList ids, cells, gains, num_cells;
    OP_REQUIRES_OK(context, context->input_list("ids", &ids));
    OP_REQUIRES_OK(context, context->input_list("cells", &cells));
    OP_REQUIRES_OK(context, context->input_list("gains", &gains));
    OP_REQUIRES_OK(context, context->input_list("num_cells", &num_cells));
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
    const int64_t chunk = std::max(kLookupChunk, total / (4 * NumThreads(context)));
    std::vector<Task> tasks;
    for (int i = 0; i < count; ++i) AddTasks(i, jobs[i], chunk, &tasks);
    std::vector<absl::Status> results(tasks.size(), absl::OkStatus());
    InParallel(context, static_cast<int64_t>(tasks.size()), total, [&](int64_t t) {
      const Task& task = tasks[t];
      const Job& job = jobs[task.job];
      const int64_t table = table_of_[task.job];
      const Piece& piece = job.piece;
      const std::string& where = where_[task.job];
      results[t] = check(table, piece.ids + task.begin, task.end - task.begin, where);
      results[t].Update(piece.CheckCells(task.begin, task.end, task.first, task.last, where));
      if (!results[t].ok()) return;
      float* const* own = shards.data() + table * num_shards_;
      const Placement& placement = placements[table];
      num_shards_ == 1 ? Run<true>(job, task, own, placement)
                       : Run<false>(job, task, own, placement);
    });
    OP_REQUIRES_OK(context, FirstError(results));
  }

 private:
  struct Job {
    Piece piece;
    int64_t cells = 0, dim = 0;
    float* out = nullptr;
  };
  // Occurrences begin..end of a job, which are all that belong to the cells first..last.
  struct Task {
    int job;
    int64_t begin, end, first, last;
  };

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

  // Cells are never split, so the sum of one is the same however many tasks there are. Cells are not
  // checked yet: whatever they are, a task's are among those that there are.
  static void AddTasks(int number, const Job& job, int64_t chunk, std::vector<Task>* tasks) {
    const Piece& piece = job.piece;
    if (piece.splits != nullptr) {
      AddTasksOfSplits(number, job, chunk, tasks);
      return;
    }
    if (piece.count < 2 * chunk ||
        (piece.cell != nullptr && !std::is_sorted(piece.cell, piece.cell + piece.count))) {
      tasks->push_back({number, 0, piece.count, 0, job.cells});
      return;
    }
    int64_t begin = 0, first = 0;
    while (begin < piece.count) {
      int64_t end = std::min(begin + chunk, piece.count);
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

  static void AddTasksOfSplits(int number, const Job& job, int64_t chunk,
                               std::vector<Task>* tasks) {
    const int64_t* splits = job.piece.splits;
    const int64_t* end = splits + job.piece.num_splits;
    for (const int64_t* at = splits; at + 1 < end;) {
      const int64_t* next = std::min(std::lower_bound(at + 1, end, *at + chunk), end - 1);
      tasks->push_back({number, *at, *next, at - splits, next - splits});
      at = next;
    }
    const int64_t count = job.piece.count, cells = job.piece.num_cells();
    if (cells < job.cells) tasks->push_back({number, count, count, cells, job.cells});
  }

  template <bool kOneShard>
  static void Run(const Job& job, const Task& task, float* const* shards,
                  const Placement& placement) {
    const Piece& piece = job.piece;
    if (piece.cell != nullptr || piece.gains == GainsOf::kIds) {
      piece.gain == nullptr ? SumCells<GainsOf::kNone, kOneShard>(job, task, shards, placement)
                            : SumCells<GainsOf::kIds, kOneShard>(job, task, shards, placement);
      return;
    }
    // What is in order of the cells; those after the last id have none.
    const int64_t last = piece.splits == nullptr ? task.end : std::min(task.last, piece.num_cells());
    const Bags bags{shards[0], piece.ids, piece.splits, piece.gain, job.out, task.end};
    if (!kOneShard || !SumBagsOfWidth(job.dim, bags, task.first, last)) {
      piece.gain == nullptr
          ? SumInOrder<GainsOf::kNone, kOneShard>(job, task, bags, last, shards, placement)
          : SumInOrder<GainsOf::kCells, kOneShard>(job, task, bags, last, shards, placement);
    }
    Clear(job.out + last * job.dim, (task.last - last) * job.dim);
  }

  template <GainsOf kGains, bool kOneShard>
  static TableRows<kGains, kOneShard> RowsOf(const Job& job, const Task& task,
                                             float* const* shards, const Placement& placement) {
    return {job.piece.ids, job.piece.gain, task.end,           shards,
            shards[0],     &placement,     job.dim, LookupAhead(job.dim)};
  }

  template <GainsOf kGains, bool kOneShard>
  static void SumInOrder(const Job& job, const Task& task, const Bags& bags, int64_t last,
                         float* const* shards, const Placement& placement) {
    auto rows = RowsOf<kGains, kOneShard>(job, task, shards, placement);
    for (int64_t cell = task.first; cell < last; ++cell) {
      if (kGains == GainsOf::kCells) rows.gain = bags.gain + cell;
      SumRows(rows, bags.First(cell), bags.First(cell + 1), job.dim, true, job.out + cell * job.dim);
    }
  }

  template <GainsOf kGains, bool kOneShard>
  static void SumCells(const Job& job, const Task& task, float* const* shards,
                       const Placement& placement) {
    const Piece& piece = job.piece;
    const int64_t dim = job.dim;
    const auto rows = RowsOf<kGains, kOneShard>(job, task, shards, placement);
    int64_t next = task.first;  // cells before it have a value
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
  }

  static void Clear(float* from, int64_t count) {
    if (count > 0) std::memset(from, 0, static_cast<size_t>(count) * sizeof(float));
  }

  std::vector<int64_t> table_of_;
  std::vector<tensorflow::PartialTensorShape> sizes_;
  std::vector<std::string> where_;
  KeptTensors kept_;

 protected:
  int64_t num_shards_ = 1;
  std::vector<int64_t> dims_;
};

// Looks rows up in variables.
class LookupOp : public SumOp {
 public:
  explicit LookupOp(OpKernelConstruction* context) : SumOp(context) {
    std::string strategy;
    OP_REQUIRES_OK(context, context->GetAttr("num_variables", &num_variables_));
    OP_REQUIRES_OK(context, context->GetAttr("strategy", &strategy));
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES(context,
                num_variables_ == num_tables() * num_shards_ && rows_.size() == dims_.size(),
                errors::InvalidArgument("There must be one variable per table and shard."));
    for (const int64_t rows : rows_) {
      OP_REQUIRES(context, rows >= 1, errors::InvalidArgument("rows must be positive."));
      placements_.emplace_back(rows, num_shards_, strategy == "mod");
    }
  }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(LockedVariables::Access::kRead);
    OP_REQUIRES_OK(context, variables.Lock(context, 0, num_variables_));
    std::vector<float*> shards(num_variables_);
    std::vector<int64_t> elements(num_variables_);
    for (int i = 0; i < num_variables_; ++i) {
      const int64_t table = i / num_shards_;
      int64_t dim = dims_[table];
      OP_REQUIRES_OK(context,
                     variables.Rows(context, i, placements_[table].RowsOf(i % num_shards_), &dim,
                                    &shards[i]));
      elements[i] = placements_[table].RowsOf(i % num_shards_) * dim;
    }
    huge_.See(context, shards, elements);
    Sum(context, shards, placements_,
        [this](int64_t table, const int64_t* ids, int64_t count, const std::string& where) {
          return CheckIds(ids, count, rows_[table], where);
        });
  }

 private:
  int num_variables_ = 0;
  std::vector<Placement> placements_;
  std::vector<int64_t> rows_;
  HugeTables huge_;
};

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_HOST_LOOKUP_OP_H_
