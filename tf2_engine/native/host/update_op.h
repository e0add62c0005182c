// Computes new rows and slots from gradients, in place: the kernel of backends/host/update.py.
//
// Occurrences are sorted by row, stably, and one thread sums and updates each distinct row in order
// of occurrence. So the result is the same for any number of threads.

#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "host/arguments.h"
#include "host/parts.h"
#include "host/rows.h"
#include "host/sums.h"
#include "host/variables.h"
#include "rules/optimizer.h"
#include "rules/proto.h"
#include "rules/sparsecore.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

constexpr int64_t kUpdateAhead = 8;  // rows and gradients to prefetch ahead
constexpr int64_t kUpdateChunk = 8192;  // ids per task; see lookup_op.h

// Applies gradients to tables. Subclasses provide the gradients.
class TableUpdateOp : public tensorflow::OpKernel {
 public:
  explicit TableUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string strategy, arithmetic;
    std::vector<tensorflow::tstring> optimizers;
    std::vector<int64_t> rows, dims;
    int num_tables, num_variables;
    OP_REQUIRES_OK(context, GetAttributes(context, "num_tables", &num_tables,
                                          "num_variables", &num_variables,
                                          "num_shards", &num_shards_, "num_cores", &num_cores_,
                                          "strategy", &strategy, "arithmetic", &arithmetic,
                                          "rows", &rows, "dims", &dims, "optimizers", &optimizers));
    const size_t tables = static_cast<size_t>(num_tables);
    OP_REQUIRES(context,
                rows.size() == tables && dims.size() == tables && optimizers.size() == tables,
                errors::InvalidArgument("rows, dims and optimizers must have one entry per table."));
    OP_REQUIRES(context, num_shards_ >= 1 && num_cores_ >= 1 && num_cores_ % num_shards_ == 0,
                errors::InvalidArgument(num_cores_, " cores cannot be spread over ", num_shards_,
                                        " shards."));
    on_sparse_cores_ = arithmetic == "sparsecore";
    int64_t first = 0;
    for (size_t i = 0; i < tables; ++i) {
      TableOf table;
      OP_REQUIRES(context, rows[i] >= 1 && dims[i] >= 1,
                  errors::InvalidArgument("rows and dims must be positive."));
      OP_REQUIRES(context,
                  ReadOptimizer(optimizers[i].data(), optimizers[i].size(), &table.optimizer),
                  errors::InvalidArgument("Table ", i,
                                          ": its optimizer is not an OptimizationParameters."));
      const bool trains = on_sparse_cores_ ? sparsecore::Trains(table.optimizer)
                                           : table.optimizer.trains();
      OP_REQUIRES(context, trains && !table.optimizer.updates_all_rows(),
                  errors::InvalidArgument("Table ", i, ": there is no native rule for its "
                                          "optimizer with arithmetic='", arithmetic, "'."));
      table.rows = rows[i];
      table.dim = dims[i];
      table.first = first;
      table.num_slots = table.optimizer.num_slots();
      table.placement = Placement(rows[i], num_shards_, strategy == "mod");
      table.by_core = num_cores_ > 1 &&
                      table.optimizer.accumulation == Optimizer::Accumulation::kDisabled;
      first += (1 + table.num_slots) * num_shards_;
      tables_.push_back(table);
    }
    OP_REQUIRES(context, first == num_variables,
                errors::InvalidArgument("The optimizers need ", first, " variables, but there are ",
                                        num_variables, "."));
    for (const TableOf& table : tables_) {
      for (int64_t i = 0; i < (1 + table.num_slots) * num_shards_; ++i) {
        shapes_.push_back({table.placement.RowsOf(i % num_shards_), table.dim});
      }
    }
  }

 protected:
  struct TableOf {
    Optimizer optimizer;
    int64_t rows, dim;
    int64_t first;  // the index of its first variable; the slots' shards follow the parameters'
    int num_slots;
    Placement placement;
    bool by_core;  // whether each core's sum is applied separately
    const TablePart* part = nullptr;  // the part of the table on a server; else null
  };
  // The gradients of one feature on one core.
  struct FeatureGradients {
    Occurrences piece;
    const float* gradient = nullptr;
    int64_t num_cells = 0;
    int64_t core = 0;
    const std::string* where = nullptr;
    int64_t first = 0;       // the index of its first occurrence among those of the table
    int64_t first_cell = 0;  // the index of its first cell among those of the table
    std::vector<int64_t> rows;   // the memory of `piece.ids`, if it is not an input of the op
    std::vector<int64_t> cells;  // the memory of `piece.cell`, if it is not an input of the op
  };
  struct Job {
    std::vector<FeatureGradients> sent;
    int64_t count = 0, num_cells = 0;
    GainsOf gains = GainsOf::kNone;
    float rate = 0.0f;
    Grouping* order;

    // Adds gradients. Must be called in order of the cores.
    void Add(FeatureGradients one) {
      one.first = count;
      one.first_cell = num_cells;
      count += one.piece.count;
      num_cells += one.num_cells;
      gains = Joined(gains, one.piece.gains);
      sent.push_back(std::move(one));
    }
  };

  // Applies the jobs of all tables.
  void Apply(OpKernelContext* context, std::vector<Job>* to_apply) {
    std::vector<Job>& jobs = *to_apply;
    tensorflow::OpInputList rates;
    OP_REQUIRES_OK(context, context->input_list("rates", &rates));
    const int64_t num_tables = static_cast<int64_t>(tables_.size());
    std::vector<Grouping> orders = TakeOrders();
    int64_t total = 0;
    for (int64_t t = 0; t < num_tables; ++t) {
      OP_REQUIRES(context, rates[t].NumElements() == 1,
                  errors::InvalidArgument("A learning rate must be one number."));
      jobs[t].order = &orders[t];
      jobs[t].rate = rates[t].flat<float>()(0);
      total += jobs[t].count;
    }
    // All inputs are checked before a variable is written.
    OP_REQUIRES_OK(context, TryInParallel(context, num_tables, total, [&](int64_t t) {
      return Sort(tables_[t], &jobs[t]);
    }));
    LockedVariables variables(LockedVariables::Access::kUpdate);
    std::vector<float*> data;
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &data));
    huge_.See(context, data, shapes_);
    std::vector<Task> tasks;
    for (int64_t t = 0; t < num_tables; ++t) AddTasks(t, jobs[t], &tasks);
    InParallel(context, static_cast<int64_t>(tasks.size()), total, [&](int64_t i) {
      const Task& task = tasks[i];
      const Job& job = jobs[task.table];
      const TableOf& table = tables_[task.table];
      float* const* own = data.data() + table.first;
      if (num_shards_ > 1 || table.by_core) {
        RunTask<false, 0>(table, job, task, own);
      } else {
        WithWidth(table.dim, [&](auto width) {
          RunTask<true, decltype(width)::value>(table, job, task, own);
        });
      }
    });
    tensorflow::mutex_lock lock(mutex_);
    orders_ = std::move(orders);
  }

 private:
  // A part of the distinct rows of a table.
  struct Task {
    int64_t table, begin, end;
  };

  // If some gains belong to ids, all gains are found by occurrence, which also determines the cell.
  static GainsOf Joined(GainsOf one, GainsOf other) {
    if (one == GainsOf::kIds || other == GainsOf::kIds) return GainsOf::kIds;
    return one == GainsOf::kNone ? other : one;
  }

  // The gradients of sorted occurrences, for `SumRows`. Each id comes with the number of its
  // occurrence if there are gains of ids. Otherwise it comes with the number of its cell, which
  // saves looking the cell up.
  template <GainsOf kGainsOf, int64_t kDim>
  struct Gradients {
    static constexpr bool kGains = kGainsOf != GainsOf::kNone;

    const float* Row(int64_t k) const {
      int64_t at;
      const FeatureGradients& from = Find(k, &at);
      if (kGainsOf == GainsOf::kIds && from.piece.cell != nullptr) at = from.piece.cell[at];
      return from.gradient + at * dim();
    }
    __attribute__((always_inline)) inline void Ask(int64_t k) const {
      if (k + kUpdateAhead < last) Prefetch<false>(Row(k + kUpdateAhead), dim());
    }
    float Gain(int64_t k) const {
      int64_t at;
      const FeatureGradients& from = Find(k, &at);
      if (from.piece.gain == nullptr) return 1.0f;
      // An occurrence whose gain is the gain of its cell.
      if (kGainsOf == GainsOf::kIds && from.piece.gains == GainsOf::kCells) at = from.piece.cell[at];
      return from.piece.gain[at];
    }
    int64_t Core(int64_t k) const {
      int64_t at;
      return Find(k, &at).core;
    }
    const FeatureGradients& Find(int64_t k, int64_t* at) const {
      *at = order.with(k);
      if (count == 1) return *sent;
      const FeatureGradients& from = *(std::upper_bound(sent, sent + count, *at, Before) - 1);
      *at -= First(from);
      return from;
    }
    static int64_t First(const FeatureGradients& from) {
      return kGainsOf == GainsOf::kIds ? from.first : from.first_cell;
    }
    static bool Before(int64_t number, const FeatureGradients& from) {
      return number < First(from);
    }
    int64_t dim() const { return kDim > 0 ? kDim : any_dim; }

    Sorted order;
    const FeatureGradients* sent;
    size_t count;
    int64_t any_dim, last;
  };

  // Reuses the memory of the previous step, to avoid allocating it in every step. Concurrent steps
  // have separate memory.
  std::vector<Grouping> TakeOrders() {
    std::vector<Grouping> orders;
    {
      tensorflow::mutex_lock lock(mutex_);
      orders.swap(orders_);
    }
    orders.resize(tables_.size());
    return orders;
  }

  absl::Status Sort(const TableOf& table, Job* job) const {
    for (const FeatureGradients& sent : job->sent) {
      TF_RETURN_IF_ERROR(
          sent.piece.CheckCells(0, sent.piece.count, 0, sent.num_cells, *sent.where));
    }
    const bool of_ids = job->gains == GainsOf::kIds;
    job->order->Reset(table.rows, job->count, of_ids ? job->count : job->num_cells);
    if (!job->order->ok()) {
      return errors::Unimplemented("A table of ", table.rows, " rows with ", job->count,
                                   " ids in a batch is too large.");
    }
    for (FeatureGradients& sent : job->sent) {
      bool outside;
      if (sent.piece.splits == nullptr) {
        outside = SetInOrder(sent, of_ids, table.rows, job->order);
      } else if (of_ids) {
        sent.cells = CellsOf(sent.piece);
        sent.piece.cell = sent.cells.data();
        outside = SetInOrder(sent, of_ids, table.rows, job->order);
      } else {
        outside = SetBySplits(sent, table.rows, job->order);
      }
      if (outside) return CheckIds(sent.piece.ids, sent.piece.count, table.rows, *sent.where);
    }
    job->order->Sort();
    return absl::OkStatus();
  }

  // Fills in the ids to sort. Returns whether an id is outside the table.
  static bool SetInOrder(const FeatureGradients& sent, bool of_ids, int64_t rows, Grouping* order) {
    const Occurrences& piece = sent.piece;
    bool outside = false;
    for (int64_t i = 0; i < piece.count; ++i) {
      const int64_t cell = sent.first_cell + (piece.cell == nullptr ? i : piece.cell[i]);
      order->Set(sent.first + i, piece.ids[i], of_ids ? sent.first + i : cell);
      outside |= !IsBelow(piece.ids[i], rows);
    }
    return outside;
  }

  static bool SetBySplits(const FeatureGradients& sent, int64_t rows, Grouping* order) {
    const Occurrences& piece = sent.piece;
    bool outside = false;
    for (int64_t cell = 0; cell < piece.num_cells(); ++cell) {
      for (int64_t i = piece.splits[cell]; i < piece.splits[cell + 1]; ++i) {
        order->Set(sent.first + i, piece.ids[i], sent.first_cell + cell);
        outside |= !IsBelow(piece.ids[i], rows);
      }
    }
    return outside;
  }

  static std::vector<int64_t> CellsOf(const Occurrences& piece) {
    std::vector<int64_t> cells(static_cast<size_t>(piece.count));
    for (int64_t cell = 0; cell < piece.num_cells(); ++cell) {
      std::fill(cells.begin() + piece.splits[cell], cells.begin() + piece.splits[cell + 1], cell);
    }
    return cells;
  }

  static void AddTasks(int64_t table, const Job& job, std::vector<Task>* tasks) {
    const Sorted order = job.order->sorted();
    const int64_t* end = order.firsts + order.num_rows;
    for (const int64_t* at = order.firsts; at < end;) {
      const int64_t* next = std::lower_bound(at + 1, end, *at + kUpdateChunk);
      tasks->push_back({table, at - order.firsts, next - order.firsts});
      at = next;
    }
  }

  // Finds the rows of a table and of its slots. For one shard, everything needed fits into
  // registers.
  template <bool kOneShard, int64_t kDim>
  class RowFinder {
   public:
    RowFinder(const TableOf& table, float* const* own, int64_t num_shards)
        : placement_(&table.placement),
          own_(own),
          num_shards_(num_shards),
          any_dim_(table.dim),
          num_slots_(table.num_slots) {
      for (int s = 0; kOneShard && s <= num_slots_; ++s) first_[s] = own[s];
    }

    // Sets the pointers to a row; see `Rows::Next`.
    __attribute__((always_inline)) inline void Find(int64_t id, RowAt* at) const {
      int64_t shard, row;
      Place(id, &shard, &row);
      at->w = Row(0, shard, row);
      for (int s = 0; s < kMaxSlots; ++s) {
        if (s < num_slots_) at->slots[s] = Row(s + 1, shard, row);
      }
    }
    __attribute__((always_inline)) inline void Ask(int64_t id) const {
      int64_t shard, row;
      Place(id, &shard, &row);
      for (int s = 0; s <= kMaxSlots; ++s) {
        if (s <= num_slots_) Prefetch<true>(Row(s, shard, row), dim());
      }
    }

   private:
    int64_t dim() const { return kDim > 0 ? kDim : any_dim_; }
    void Place(int64_t id, int64_t* shard, int64_t* row) const {
      *shard = 0;
      *row = id;
      if (!kOneShard) placement_->Find(id, shard, row);
    }
    float* Row(int number, int64_t shard, int64_t row) const {
      return (kOneShard ? first_[number] : own_[number * num_shards_ + shard]) + row * dim();
    }

    const Placement* placement_;
    float* const* own_;
    int64_t num_shards_, any_dim_;
    int num_slots_;
    float* first_[1 + kMaxSlots];
  };

  // Finds rows and sums their gradients. The width is `kDim`, or variable if `kDim` is 0.
  template <GainsOf kGains, bool kOneShard, int64_t kDim>
  class RowSums {
   public:
    RowSums(const Gradients<kGains, kDim>& gradients, const RowFinder<kOneShard, kDim>& finder)
        : gradients_(gradients),
          finder_(finder),
          sum_(static_cast<size_t>((dim() + kLine - 1) / kLine)) {}

    int64_t dim() const { return gradients_.dim(); }
    const Sorted& order() const { return gradients_.order; }
    int64_t Core(int64_t k) const { return gradients_.Core(k); }

    // Prefetches the `number`-th distinct row.
    __attribute__((always_inline)) inline void Ask(int64_t number) const {
      finder_.Ask(order().id(order().first(number)));
    }
    // Sets the pointers to the row of the occurrences from `begin` to `end`, and to their sum,
    // which is valid until the next call.
    __attribute__((always_inline)) inline void Set(RowAt* at, int64_t begin, int64_t end) {
      float* sum = sum_.data()->floats;
      SumRows(gradients_, begin, end, dim(), true, sum);
      finder_.Find(order().id(begin), at);
      at->g = sum;
    }

   private:
    static constexpr int64_t kLine = 16;
    // A vector that straddles two cache lines cannot be read right after it was written.
    struct alignas(kLine * sizeof(float)) Line {
      float floats[kLine];
    };

    const Gradients<kGains, kDim> gradients_;
    const RowFinder<kOneShard, kDim> finder_;
    std::vector<Line> sum_;
  };

  // The rows of a task, each with the sum of all its gradients.
  template <class Sums>
  class RowsOfTask final : public Rows {
   public:
    RowsOfTask(Sums sums, const Task& task)
        : Rows(sums.dim()), sums_(std::move(sums)), row_(task.begin), last_(task.end) {
      for (int64_t row = row_; row < std::min(row_ + kUpdateAhead, last_); ++row) sums_.Ask(row);
    }

    bool Next(RowAt* at) override {
      if (row_ == last_) return false;
      if (row_ + kUpdateAhead < last_) sums_.Ask(row_ + kUpdateAhead);
      sums_.Set(at, sums_.order().first(row_), sums_.order().first(row_ + 1));
      ++row_;
      return true;
    }

   private:
    Sums sums_;
    int64_t row_;
    const int64_t last_;
  };

  // The rows of a task, each with one sum per core that sent gradients for it: first the core that
  // owns the row, then the others in order.
  template <class Sums>
  class RowsOfCores final : public Rows {
   public:
    RowsOfCores(Sums sums, const Task& task, const TableUpdateOp& op, const TableOf& table)
        : Rows(sums.dim()),
          sums_(std::move(sums)),
          op_(op),
          table_(table),
          row_(task.begin - 1),
          last_(task.end) {}

    bool Next(RowAt* at) override {
      while (from_ < end_ || GoOn()) {
        const int64_t begin = from_, core = sums_.Core(begin);
        while (from_ < end_ && sums_.Core(from_) == core) ++from_;
        if ((core == owner_) != owners_) continue;
        sums_.Set(at, begin, from_);
        return true;
      }
      return false;
    }

   private:
    // Moves to the gradients of another core, or to the next row. Returns false at the end.
    bool GoOn() {
      if (!std::exchange(owners_, false)) {
        if (++row_ == last_) return false;
        owners_ = true;
        end_ = sums_.order().first(row_ + 1);
        owner_ = op_.CoreOf(table_, sums_.order().id(sums_.order().first(row_)));
      }
      from_ = sums_.order().first(row_);
      return true;
    }

    Sums sums_;
    const TableUpdateOp& op_;
    const TableOf& table_;
    int64_t row_;
    const int64_t last_;
    int64_t from_ = 0, end_ = 0, owner_ = 0;
    bool owners_ = false;  // whether to look for gradients of the row's owner
  };

  // Args:
  //   kPlain: there is one shard, and a row is updated once.
  //   own: the variables of the table.
  template <bool kPlain, int64_t kDim>
  void RunTask(const TableOf& table, const Job& job, const Task& task, float* const* own) const {
    switch (job.gains) {
      case GainsOf::kNone: return Run<GainsOf::kNone, kPlain, kDim>(table, job, task, own);
      case GainsOf::kIds: return Run<GainsOf::kIds, kPlain, kDim>(table, job, task, own);
      case GainsOf::kCells: return Run<GainsOf::kCells, kPlain, kDim>(table, job, task, own);
    }
  }

  template <GainsOf kGains, bool kPlain, int64_t kDim>
  void Run(const TableOf& table, const Job& job, const Task& task, float* const* own) const {
    const Sorted order = job.order->sorted();
    const int64_t end = order.first(task.end);
    using Sums = RowSums<kGains, kPlain, kDim>;
    Sums sums({order, job.sent.data(), job.sent.size(), table.dim, end}, {table, own, num_shards_});
    const auto update = on_sparse_cores_ ? sparsecore::UpdateRows : UpdateRows;
    if constexpr (!kPlain) {
      if (table.by_core) {
        RowsOfCores<Sums> rows(std::move(sums), task, *this, table);
        return update(table.optimizer, job.rate, &rows);
      }
    }
    RowsOfTask<Sums> rows(std::move(sums), task);
    update(table.optimizer, job.rate, &rows);
  }

  // The core that owns a row.
  int64_t CoreOf(const TableOf& table, int64_t id) const {
    int64_t shard, row;
    table.placement.Find(id, &shard, &row);
    if (table.part != nullptr) return table.part->Id(row) % num_cores_;
    const int64_t per_shard = num_cores_ / num_shards_;
    return shard * per_shard + row % per_shard;
  }

  tensorflow::mutex mutex_;
  std::vector<Grouping> orders_;
  HugeTables huge_;

 protected:
  std::vector<VariableShape> shapes_;
  bool on_sparse_cores_ = false;
  int64_t num_shards_ = 1, num_cores_ = 1;
  std::vector<TableOf> tables_;
};

// Applies the gradients of features of all cores.
class UpdateOp : public TableUpdateOp {
 public:
  explicit UpdateOp(OpKernelConstruction* context) : TableUpdateOp(context) {
    int num_pieces;
    OP_REQUIRES_OK(context, GetAttributes(context, "num_pieces", &num_pieces,
                                          "table_of", &table_of_, "core_of", &core_of_,
                                          "where", &where_));
    const size_t pieces = static_cast<size_t>(num_pieces);
    OP_REQUIRES(context,
                table_of_.size() == pieces && core_of_.size() == pieces && where_.size() == pieces,
                errors::InvalidArgument(
                    "table_of, core_of and where must have one entry per piece."));
    pieces_of_.resize(tables_.size());
    int64_t core = 0;
    for (size_t i = 0; i < pieces; ++i) {
      OP_REQUIRES(context, table_of_[i] >= 0 && static_cast<size_t>(table_of_[i]) < tables_.size(),
                  errors::InvalidArgument("There is no table ", table_of_[i], "."));
      OP_REQUIRES(context, core_of_[i] >= core && core_of_[i] < num_cores_,
                  errors::InvalidArgument("Pieces must be in order of their cores."));
      core = core_of_[i];
      pieces_of_[table_of_[i]].push_back(static_cast<int>(i));
    }
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList ids, cells, gains, gradients;
    OP_REQUIRES_OK(context, GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                     "gradients", &gradients));
    std::vector<Job> jobs(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (const int i : pieces_of_[t]) {
        FeatureGradients sent;
        OP_REQUIRES_OK(context, sent.piece.Read(ids[i], cells[i], gains[i], where_[i]));
        sent.gradient = gradients[i].flat<float>().data();
        OP_REQUIRES_OK(context, NumCells(i, gradients[i], &sent.num_cells));
        OP_REQUIRES_OK(context, sent.piece.CheckNumCells(sent.num_cells, where_[i]));
        sent.core = core_of_[i];
        sent.where = &where_[i];
        jobs[t].Add(std::move(sent));
      }
    }
    Apply(context, &jobs);
  }

 private:
  std::vector<std::vector<int>> pieces_of_;  // the pieces of each table

 protected:
  // Sets the number of cells of a gradient.
  absl::Status NumCells(int i, const Tensor& gradient, int64_t* num_cells) const {
    const int64_t dim = tables_[table_of_[i]].dim, size = gradient.NumElements();
    if (size % dim != 0) {
      return errors::InvalidArgument(where_[i], ": a gradient of shape ",
                                     gradient.shape().DebugString(),
                                     " cannot be divided into rows with ", dim, " columns.");
    }
    *num_cells = size / dim;
    return absl::OkStatus();
  }

  std::vector<int64_t> table_of_, core_of_;
  std::vector<std::string> where_;
};

}  // namespace estimator_bridge
