// The fused ops of the host driver for tables on a GPU. Their attributes are those of
// host/lookup_op.h and host/update_op.h.
//
// `LookupOnGpu` and `UpdateOnGpu` take ids, cells and gains in host memory, and check them there.
// `RawLookup` and `RawUpdate` take batches that are on the GPU, as they were enqueued. The host
// cannot check the ids of these batches without waiting for the GPU. Instead, the kernels of a step
// with a bad id update no row, and write a report into host memory. The next op of this kind, or
// `CheckBatchesOp`, raises the error.
//
// `Device` opens the stream of a GPU; in tests it is a CPU that runs the kernels. It has
//   class Stream    with ok, Launch, Copy, Wait and report, as in gpu/cuda.h
//   class Staging   with mutex, Get and Copied
//   static void* StreamOf(OpKernelContext*)

#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/step.h"
#include "host/arguments.h"
#include "host/lookup_op.h"
#include "host/occurrences_op.h"
#include "host/update_op.h"
#include "host/variables.h"

namespace estimator_bridge {
namespace gpu {

constexpr char kNoStream[] = "The stream of the GPU cannot be used.";

inline absl::Status AsStatus(const std::string& error) {
  return error.empty() ? absl::OkStatus() : errors::Internal(error);
}

using Features = std::vector<InputFeature>;

// The reports of all GPUs, and the features of the ops that reports may be about.
class Reports {
 public:
  static Reports* Get() {
    static Reports* const reports = new Reports;
    return reports;
  }

  // Returns the number of a new op.
  uint32_t Add(Features features) {
    const std::lock_guard<std::mutex> lock(mutex_);
    features_of_op_[++last_op_] = std::move(features);
    return last_op_;
  }
  void Remove(uint32_t op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    features_of_op_.erase(op);
  }
  void Watch(Report* report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(reports_.begin(), reports_.end(), report) == reports_.end()) {
      reports_.push_back(report);
    }
  }
  bool watches_any() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !reports_.empty();
  }

  // Returns the error of a batch that was looked up earlier, if there is one. Each error is
  // returned once.
  absl::Status Check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Report* const report : reports_) {
      if (*static_cast<volatile Problem*>(&report->problem) == kNoProblem) continue;
      std::atomic_thread_fence(std::memory_order_acquire);
      const Report found = *report;
      *static_cast<volatile Problem*>(&report->problem) = kNoProblem;
      const auto features = features_of_op_.find(found.op);
      if (features != features_of_op_.end()) return Error(features->second, found);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Error(const Features& features, const Report& report) {
    const InputFeature& feature = features[report.problem >> 32 & 0x7fffffffu];
    if (report.problem >> 63 == static_cast<uint32_t>(ProblemKind::kId)) {
      return OutsideTable(report.value, feature.rows, feature.where);
    }
    if (feature.kind == InputFeature::kSparse) {
      return feature.OutsideSizes(report.axis, report.value);
    }
    const uint32_t row = static_cast<uint32_t>(report.problem);
    return feature.BadSplit(row, report.num_rows, report.value, report.before, report.count);
  }

  std::mutex mutex_;
  std::map<uint32_t, Features> features_of_op_;
  uint32_t last_op_ = 0;
  std::vector<Report*> reports_;
};

// The pieces of a step, from the inputs of an op.
struct Pieces {
  std::vector<estimator_bridge::Occurrences> read;  // for error messages, if the host reads ids
  std::vector<Occurrences> occurrences;
  std::vector<float*> data;  // activations or gradients

  absl::Status Add(const Tensor& ids, const Tensor& cells, const Tensor& gains, int64_t num_cells,
                   int64_t table, int64_t core, const std::string& where) {
    estimator_bridge::Occurrences piece;
    TF_RETURN_IF_ERROR(piece.Read(ids, cells, gains, where));
    TF_RETURN_IF_ERROR(piece.CheckNumCells(num_cells, where));
    const Occurrences one{piece, num_cells, table, core};
    read.push_back(piece);
    occurrences.push_back(one);
    return absl::OkStatus();
  }

  void AddRaw(const InputFeature& feature, const InputBatch& batch, const Tables& tables,
              int64_t table, int64_t core, bool drops) {
    RawAt raw = {};
    raw.ids = batch.ids;
    raw.index = batch.index;
    raw.weight = batch.weight;
    raw.rows = std::min(feature.rows, tables[table].rows);
    raw.placement = tables[table].placement;
    raw.rank = static_cast<uint32_t>(batch.rank);
    raw.axes = static_cast<uint32_t>(feature.sizes.size());
    for (uint32_t axis = 0; axis < raw.axes; ++axis) {
      raw.sizes[axis] = feature.sizes[axis] < 0 ? batch.samples : feature.sizes[axis];
    }
    raw.num_splits = static_cast<uint32_t>(batch.splits);
    raw.num_rows = static_cast<uint32_t>(std::max<int64_t>(batch.splits - 1, 0));
    raw.per_row = static_cast<uint32_t>(feature.per_row);
    raw.combiner = feature.combiner;
    raw.is_sequence = feature.sequence;
    raw.drops = drops;
    Occurrences one;
    one.count = batch.count;
    one.num_splits = batch.splits;
    one.num_cells = batch.num_cells;
    one.table = table;
    one.core = core;
    one.raw = raw;
    one.layout = feature.kind == InputFeature::kDense ? Layout::kOnes
                 : feature.cuts() || feature.kind == InputFeature::kSparse ? Layout::kCells
                                                                           : Layout::kSplits;
    if (feature.has_gains()) {
      one.gains = feature.by_splits() ? Gains::kOfCells : Gains::kOfIds;
    }
    occurrences.push_back(one);
  }
};

// The features of an op whose batches are on the GPU.
class RawFeatures {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(InputFeature::ReadAll(context, "num_pieces", "limits", &features_));
    for (const InputFeature& feature : features_) {
      if (feature.sizes.size() > kMostAxes) {
        return errors::Unimplemented(feature.where, ": an activation has more than ", kMostAxes,
                                     " dimensions.");
      }
    }
    return context->GetAttr("drop", &drops_);
  }

  // Adds the batches of all features. `table_of` and `core_of` say which table and core each has.
  absl::Status Add(OpKernelContext* context, const Tables& tables,
                   const std::vector<int64_t>& table_of, const std::vector<int64_t>& core_of,
                   Pieces* pieces) const {
    TF_RETURN_IF_ERROR(Reports::Get()->Check());
    tensorflow::OpInputList index, ids, weights, samples;
    TF_RETURN_IF_ERROR(GetLists(context, "index", &index, "ids", &ids, "weights", &weights,
                                "num_samples", &samples));
    for (int i = 0; i < ids.size(); ++i) {
      const InputFeature& feature = features_[i];
      if (samples[i].NumElements() != 1) {
        return errors::InvalidArgument(feature.where, ": num_samples must be one number.");
      }
      InputBatch batch;
      TF_RETURN_IF_ERROR(batch.Read(feature, index[i], ids[i], weights[i],
                                    feature.kind == InputFeature::kRagged
                                        ? index[i].NumElements() - 1
                                        : samples[i].flat<int64_t>()(0)));
      pieces->AddRaw(feature, batch, tables, table_of[i], core_of[i], drops_);
    }
    return absl::OkStatus();
  }

  const Features& features() const { return features_; }

 private:
  Features features_;
  bool drops_ = false;
};

template <class Device>
class Step {
 public:
  // Checks a batch, unless it is on the GPU, and copies it to the beginning of `memory` on the
  // GPU. The memory has `more` bytes after the batch. Then reads a batch that is on the GPU.
  absl::Status Send(OpKernelContext* context, typename Device::Stream* stream, const Pieces& pieces,
                    const Batch& batch, const Tables& tables,
                    const std::vector<std::string>& where, size_t more, Tensor* memory) {
    if (!batch.fits()) return errors::Unimplemented("A batch or a table is too large for a GPU.");
    const size_t bytes = Rounded(batch.bytes());
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_INT8, {static_cast<int64_t>(bytes + more)}, memory));
    const std::lock_guard<std::mutex> lock(*staging_.mutex());
    std::string error;
    char* const from = staging_.Get(*stream, batch.bytes_to_copy(), &error);
    TF_RETURN_IF_ERROR(AsStatus(error));
    batch.Describe(from);
    const int64_t count = static_cast<int64_t>(pieces.read.size());
    // Waking a thread takes as long as reading some ten thousand ids.
    const int64_t tasks = std::min<int64_t>(count, 1 + batch.count() / kIdsOfTask);
    TF_RETURN_IF_ERROR(TryInParallel(context, tasks, batch.count(), [&](int64_t task) {
      for (int64_t i = task; i < count; i += tasks) {
        TF_RETURN_IF_ERROR(
            Write(pieces.read[i], pieces.occurrences[i], batch, i, tables, where[i], from));
      }
      return absl::OkStatus();
    }));
    TF_RETURN_IF_ERROR(AsStatus(stream->Copy(At(*memory), from, batch.bytes_to_copy(), true)));
    staging_.Copied(*stream);
    return AsStatus(Read(stream, batch, batch.At(At(*memory))));
  }

  static char* At(const Tensor& memory) {
    return const_cast<char*>(memory.tensor_data().data());
  }
  // The offset of the data after a batch.
  static size_t Rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  static constexpr uint32_t kIdsOfTask = 16384;

  static absl::Status Write(const estimator_bridge::Occurrences& piece, const Occurrences& one,
                            const Batch& batch, int64_t number, const Tables& tables,
                            const std::string& where, char* to) {
    switch (batch.Write(number, to)) {
      case Batch::Invalid::kNone: return absl::OkStatus();
      case Batch::Invalid::kId:
        return CheckIds(piece.ids, piece.count, tables[one.table].rows, where);
      case Batch::Invalid::kCell:
        return piece.CheckCells(0, piece.count, 0, one.num_cells, where);
    }
  }

  typename Device::Staging staging_;
};

template <class Device>
class LookupOnGpu : public LookupOp {
 public:
  explicit LookupOnGpu(OpKernelConstruction* context) : LookupOp(context), tables_({}, 1) {
    if (!context->status().ok()) return;
    std::vector<Tables::Table> tables;
    for (size_t t = 0; t < rows_.size(); ++t) {
      tables.push_back({rows_[t], dims_[t], 0, 0, placements_[t]});
    }
    tables_ = Tables(std::move(tables), num_shards_);
  }

  void Compute(OpKernelContext* context) override {
    typename Device::Stream stream(Device::StreamOf(context));
    LockedVariables variables(LockedVariables::Access::kRead);
    std::vector<float*> data;
    std::vector<tensorflow::DataType> types;
    OP_REQUIRES(context, stream.ok(), errors::Internal(kNoStream));
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &data, &types));
    Pieces pieces;
    OP_REQUIRES_OK(context, AddPieces(context, &pieces));
    for (int i = 0; i < context->num_outputs(); ++i) {
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK(context, ShapeOf(i, pieces.occurrences[i].num_cells, &shape));
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &output));
      pieces.data.push_back(output->flat<float>().data());
    }
    std::vector<Stored> stored;
    for (const tensorflow::DataType type : types) {
      stored.push_back(type == tensorflow::DT_FLOAT  ? Stored::kFloat32
                       : type == tensorflow::DT_HALF ? Stored::kFloat16
                                                     : Stored::kBfloat16);
    }
    const std::vector<PartAt> parts = tables_.Parts(data, stored);
    const Batch batch(tables_, pieces.occurrences, pieces.data, parts, false);
    Tensor memory;
    OP_REQUIRES_OK(context, step_.Send(context, &stream, pieces, batch, tables_, where_, 0, &memory));
    Report* report = nullptr;
    if (batch.is_raw()) {
      std::string error;
      report = stream.report(&error);
      OP_REQUIRES_OK(context, AsStatus(error));
      Reports::Get()->Watch(report);
    }
    const Staged staged = batch.At(step_.At(memory));
    OP_REQUIRES_OK(context, AsStatus(LookUp(&stream, batch, staged, report, number_)));
  }

 protected:
  virtual absl::Status AddPieces(OpKernelContext* context, Pieces* pieces) const {
    tensorflow::OpInputList ids, cells, gains, num_cells;
    TF_RETURN_IF_ERROR(GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                "num_cells", &num_cells));
    for (int i = 0; i < ids.size(); ++i) {
      if (num_cells[i].NumElements() != 1) {
        return errors::InvalidArgument(where_[i], ": num_cells must be one number.");
      }
      TF_RETURN_IF_ERROR(pieces->Add(ids[i], cells[i], gains[i], num_cells[i].flat<int64_t>()(0),
                                     table_of_[i], 0, where_[i]));
    }
    return absl::OkStatus();
  }

  Tables tables_;
  uint32_t number_ = 0;  // the number of the op in `Reports`

 private:
  Step<Device> step_;
};

template <class Device>
class RawLookup : public LookupOnGpu<Device> {
 public:
  explicit RawLookup(OpKernelConstruction* context) : LookupOnGpu<Device>(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, features_.Read(context));
    this->number_ = Reports::Get()->Add(features_.features());
  }
  ~RawLookup() override { Reports::Get()->Remove(this->number_); }

 private:
  absl::Status AddPieces(OpKernelContext* context, Pieces* pieces) const override {
    const std::vector<int64_t> cores(this->table_of_.size(), 0);
    return features_.Add(context, this->tables_, this->table_of_, cores, pieces);
  }

  RawFeatures features_;
};

template <class Device>
class UpdateOnGpu : public UpdateOp {
 public:
  explicit UpdateOnGpu(OpKernelConstruction* context) : UpdateOp(context), all_({}, 1) {
    if (!context->status().ok()) return;
    std::vector<tensorflow::tstring> optimizers;
    OP_REQUIRES_OK(context, context->GetAttr("optimizers", &optimizers));
    OP_REQUIRES(context, !on_sparse_cores_,
                errors::Unimplemented("The arithmetic of SparseCores is not available on a GPU."));
    std::vector<Tables::Table> tables;
    std::vector<std::pair<std::string, int64_t>> kinds;
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableOf& table = tables_[t];
      const std::pair<std::string, int64_t> kind(optimizers[t], table.dim);
      const auto group = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
      if (group == static_cast<int64_t>(kinds.size())) {
        kinds.push_back(kind);
        groups_.push_back({table.optimizer, table.dim, table.by_core, nullptr});
      }
      tables.push_back({table.rows, table.dim, table.num_slots, group, table.placement});
    }
    all_ = Tables(std::move(tables), num_shards_);
  }

  void Compute(OpKernelContext* context) override {
    typename Device::Stream stream(Device::StreamOf(context));
    tensorflow::OpInputList gradients, rates;
    OP_REQUIRES_OK(context, GetLists(context, "gradients", &gradients, "rates", &rates));
    Pieces pieces;
    std::vector<int64_t> num_cells(gradients.size());
    for (int i = 0; i < gradients.size(); ++i) {
      OP_REQUIRES_OK(context, NumCells(i, gradients[i], &num_cells[i]));
      pieces.data.push_back(const_cast<float*>(gradients[i].flat<float>().data()));
    }
    OP_REQUIRES_OK(context, AddPieces(context, num_cells, &pieces));
    std::vector<UpdateStep::Group> groups = groups_;
    for (size_t t = 0; t < tables_.size(); ++t) {
      OP_REQUIRES(context, rates[t].NumElements() == 1,
                  errors::InvalidArgument("A learning rate must be one number."));
      groups[all_[t].group].rate = rates[t].flat<float>().data();
    }
    LockedVariables variables(LockedVariables::Access::kUpdate,
                              [&](void* to, const void* from, size_t bytes) {
                                return AsStatus(stream.Copy(to, from, bytes, false));
                              });
    std::vector<float*> data;
    OP_REQUIRES(context, stream.ok(), errors::Internal(kNoStream));
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &data));
    const std::vector<PartAt> parts = all_.Parts(data);
    const Batch batch(all_, pieces.occurrences, pieces.data, parts, true);
    Tensor memory;
    OP_REQUIRES_OK(context, step_.Send(context, &stream, pieces, batch, all_, where_,
                                       UpdateStep::Bytes(batch.count()), &memory));
    char* const base = step_.At(memory);
    OP_REQUIRES_OK(context, AsStatus(UpdateStep(all_, num_cores_)
                                         .Run(&stream, batch, batch.At(base), groups,
                                              base + step_.Rounded(batch.bytes()))));
  }

 protected:
  virtual absl::Status AddPieces(OpKernelContext* context, const std::vector<int64_t>& num_cells,
                                 Pieces* pieces) const {
    tensorflow::OpInputList ids, cells, gains;
    TF_RETURN_IF_ERROR(GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains));
    for (int i = 0; i < ids.size(); ++i) {
      TF_RETURN_IF_ERROR(pieces->Add(ids[i], cells[i], gains[i], num_cells[i], table_of_[i],
                                     core_of_[i], where_[i]));
    }
    return absl::OkStatus();
  }

  Tables all_;

 private:
  std::vector<UpdateStep::Group> groups_;
  Step<Device> step_;
};

template <class Device>
class RawUpdate : public UpdateOnGpu<Device> {
 public:
  explicit RawUpdate(OpKernelConstruction* context) : UpdateOnGpu<Device>(context) {
    if (context->status().ok()) OP_REQUIRES_OK(context, features_.Read(context));
  }

 private:
  absl::Status AddPieces(OpKernelContext* context, const std::vector<int64_t>& num_cells,
                         Pieces* pieces) const override {
    TF_RETURN_IF_ERROR(
        features_.Add(context, this->all_, this->table_of_, this->core_of_, pieces));
    for (size_t i = 0; i < num_cells.size(); ++i) {
      if (num_cells[i] != pieces->occurrences[i].num_cells) {
        return errors::InvalidArgument(this->where_[i], ": there are gradients for ", num_cells[i],
                                       " cells instead of ", pieces->occurrences[i].num_cells,
                                       ".");
      }
    }
    return absl::OkStatus();
  }

  RawFeatures features_;
};

// Waits for all lookups of batches that are on the GPU, and raises the error of an invalid batch.
template <class Device>
class CheckBatchesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    if (!Reports::Get()->watches_any()) return;
    typename Device::Stream stream(Device::StreamOf(context));
    OP_REQUIRES(context, stream.ok(), errors::Internal(kNoStream));
    OP_REQUIRES_OK(context, AsStatus(stream.Wait()));
    OP_REQUIRES_OK(context, Reports::Get()->Check());
  }
};

}  // namespace gpu
}  // namespace estimator_bridge
