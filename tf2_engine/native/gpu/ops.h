// The fused ops of the host driver for tables on a GPU. Their attributes are those of
// host/lookup_op.h and host/update_op.h. Ids, cells and gains are in host memory, where they are
// checked.
//
// `Device` opens the stream of a GPU; in tests it is a CPU that runs the kernels. It has
//   class Stream    with ok, Launch and Copy, as in gpu/cuda.h
//   class Staging   with mutex, Get and Copied
//   static void* StreamOf(OpKernelContext*)

#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/step.h"
#include "host/arguments.h"
#include "host/lookup_op.h"
#include "host/update_op.h"
#include "host/variables.h"

namespace estimator_bridge {
namespace gpu {

constexpr char kNoStream[] = "The stream of the GPU cannot be used.";

inline absl::Status AsStatus(const std::string& error) {
  return error.empty() ? absl::OkStatus() : errors::Internal(error);
}

// The pieces of a step, from the inputs of an op.
struct Pieces {
  std::vector<estimator_bridge::Occurrences> read;  // for error messages
  std::vector<Occurrences> occurrences;
  std::vector<float*> data;  // activations or gradients

  absl::Status Add(const Tensor& ids, const Tensor& cells, const Tensor& gains, int64_t num_cells,
                   int64_t table, int64_t core, const std::string& where, const float* of_cells) {
    estimator_bridge::Occurrences piece;
    TF_RETURN_IF_ERROR(piece.Read(ids, cells, gains, where));
    TF_RETURN_IF_ERROR(piece.CheckNumCells(num_cells, where));
    const Occurrences one{piece, num_cells, table, core};
    read.push_back(piece);
    occurrences.push_back(one);
    data.push_back(const_cast<float*>(of_cells));
    return absl::OkStatus();
  }
};

template <class Device>
class Step {
 public:
  // Checks a batch and copies it to the beginning of `memory` on the GPU. The memory has `more`
  // bytes after the batch.
  absl::Status Send(OpKernelContext* context, typename Device::Stream* stream, const Pieces& pieces,
                    const Batch& batch, const Tables& tables,
                    const std::vector<std::string>& where, size_t more, Tensor* memory) {
    if (!batch.fits()) return errors::Unimplemented("A batch or a table is too large for a GPU.");
    const size_t bytes = Rounded(batch.bytes());
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_INT8, {static_cast<int64_t>(bytes + more)}, memory));
    const std::lock_guard<std::mutex> lock(*staging_.mutex());
    std::string error;
    char* const from = staging_.Get(*stream, bytes, &error);
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
    TF_RETURN_IF_ERROR(AsStatus(stream->Copy(At(*memory), from, batch.bytes(), true)));
    staging_.Copied(*stream);
    return absl::OkStatus();
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
      case Batch::Problem::kNone: return absl::OkStatus();
      case Batch::Problem::kId:
        return CheckIds(piece.ids, piece.count, tables[one.table].rows, where);
      case Batch::Problem::kCell:
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
    OP_REQUIRES(context, stream.ok(), errors::Internal(kNoStream));
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &data));
    tensorflow::OpInputList ids, cells, gains, num_cells;
    OP_REQUIRES_OK(context, GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                     "num_cells", &num_cells));
    Pieces pieces;
    for (int i = 0; i < ids.size(); ++i) {
      OP_REQUIRES(context, num_cells[i].NumElements() == 1,
                  errors::InvalidArgument(where_[i], ": num_cells must be one number."));
      const int64_t count = num_cells[i].flat<int64_t>()(0);
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK(context, ShapeOf(i, count, &shape));
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &output));
      OP_REQUIRES_OK(context, pieces.Add(ids[i], cells[i], gains[i], count, table_of_[i], 0,
                                         where_[i], output->flat<float>().data()));
    }
    const std::vector<PartAt> parts = tables_.Parts(data);
    const Batch batch(tables_, pieces.occurrences, pieces.data, parts, false);
    Tensor memory;
    OP_REQUIRES_OK(context, step_.Send(context, &stream, pieces, batch, tables_, where_, 0, &memory));
    const Staged staged = batch.At(step_.At(memory));
    OP_REQUIRES_OK(context, AsStatus(LookUp(&stream, batch, staged)));
  }

 private:
  Tables tables_;
  Step<Device> step_;
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
    tensorflow::OpInputList ids, cells, gains, gradients, rates;
    OP_REQUIRES_OK(context, GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                     "gradients", &gradients, "rates", &rates));
    Pieces pieces;
    for (int i = 0; i < ids.size(); ++i) {
      int64_t count;
      OP_REQUIRES_OK(context, NumCells(i, gradients[i], &count));
      OP_REQUIRES_OK(context, pieces.Add(ids[i], cells[i], gains[i], count, table_of_[i],
                                         core_of_[i], where_[i],
                                         gradients[i].flat<float>().data()));
    }
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

 private:
  Tables all_;
  std::vector<UpdateStep::Group> groups_;
  Step<Device> step_;
};

}  // namespace gpu
}  // namespace estimator_bridge
