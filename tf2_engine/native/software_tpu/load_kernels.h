// Kernels of the ops that copy the shard of a table, slots included, to the TPU and back.

#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "host/arguments.h"
#include "software_tpu/machine.h"

namespace software_tpu {

using estimator_bridge::GetAttributes;

// The name of the op that loads or retrieves the tables of an optimizer.
template <bool kLoad>
std::string TransferOp(const char* optimizer) {
  return absl::StrCat(kLoad ? "Load" : "Retrieve", "TPUEmbedding", optimizer, "Parameters");
}

template <bool kLoad>
class TransferKernel : public OpKernel {
 public:
  explicit TransferKernel(OpKernelConstruction* construction)
      : OpKernel(construction), op_(construction->def().op()) {
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "table_id", &table_id_, "table_name", &table_name_,
                                 "num_shards", &num_shards_, "shard_id", &shard_id_));
    OP_REQUIRES(construction, (table_id_ >= 0) != !table_name_.empty(),
                Refuse(op_, " has table_id ", table_id_, " and table_name '", table_name_,
                       "'; exactly one of them must name the table."));
  }

  void Compute(OpKernelContext* context) override {
    Machine& machine = Machine::Get();
    OP_REQUIRES_OK(context, machine.wait_queue.Change([&]() -> absl::Status {
      if (machine.batch_queue == nullptr) return NotConfigured();
      return Transfer(context, machine.batch_queue.get());
    }));
  }

 private:
  absl::Status Transfer(OpKernelContext* context, BatchQueue* batch_queue) const {
    const TpuConfig& config = batch_queue->config();
    int64_t number = table_id_;
    for (size_t i = 0; i < config.tables.size() && !table_name_.empty(); ++i) {
      if (config.tables[i].name == table_name_) number = static_cast<int64_t>(i);
    }
    if (number < 0 || number >= static_cast<int64_t>(config.tables.size())) {
      return absl::NotFoundError(
          absl::StrCat("Software TPU: ", op_, " is for table '", table_name_, "' (table_id ",
                       table_id_, "), which the configuration does not have."));
    }
    const TableConfig& table = config.tables[number];
    const std::string where = absl::StrCat("table '", table.name, "': ");
    const std::string expected = TransferOp<kLoad>(table.optimizer.op_name());
    if (op_ != expected) {
      return Refuse(where, op_, " does not fit its optimizer; use ", expected, ".");
    }
    if (num_shards_ != config.num_hosts || shard_id_ < 0 || shard_id_ >= num_shards_) {
      return Refuse(where, "shard ", shard_id_, " of ", num_shards_, " on ", config.num_hosts,
                    " hosts.");
    }
    const Shard shard(table.rows, num_shards_, shard_id_, config.mod);
    const TensorShape shape({shard.count(), table.dim});
    Table& held = batch_queue->table(static_cast<int>(number));
    if (kLoad) {
      for (int i = 0; i < held.num_arrays(); ++i) {
        if (context->input(i).shape() != shape) {
          return Refuse(where, "input ", i, " of ", op_, " has the shape ",
                        context->input(i).shape().DebugString(), " instead of ",
                        shape.DebugString(), ".");
        }
      }
      // A waiting update was computed for the old values of the table.
      batch_queue->Drop();
      for (int i = 0; i < held.num_arrays(); ++i) {
        held.Load(i, shard, context->input(i).flat<float>().data());
      }
      return absl::OkStatus();
    }
    batch_queue->Flush();
    for (int i = 0; i < held.num_arrays(); ++i) {
      Tensor* values;
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &values));
      held.Retrieve(i, shard, values->flat<float>().data());
    }
    return absl::OkStatus();
  }

  const std::string op_;
  int64_t table_id_, num_shards_, shard_id_;
  std::string table_name_;
};

// Registers an op's kernel for one rule. This is a function template, because the macro defines a
// static variable, and each rule needs its own.
template <bool kLoad, class OneRule>
void RegisterTransfer(const OneRule& rule) {
  const std::string op = TransferOp<kLoad>(rule.kOpName);
  SOFTWARE_TPU_KERNEL(op.c_str(), TransferKernel<kLoad>);
}

static const bool kTransfersAreRegistered = [] {
  estimator_bridge::ForEachRule([](const auto& rule) {
    RegisterTransfer<true>(rule);
    RegisterTransfer<false>(rule);
  });
  return true;
}();

}  // namespace software_tpu
