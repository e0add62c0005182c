// Kernels of the ops that enqueue ids, receive activations and send gradients.

#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "software_tpu/config.h"
#include "software_tpu/inputs.h"
#include "software_tpu/machine.h"

namespace software_tpu {

// The name that a batch's enqueue, receive and send ops share. For most ops it is empty.
inline std::string BatchName(OpKernelConstruction* construction) {
  std::string name;
  if (construction->HasAttr("_tpu_embedding_layer") &&
      !construction->GetAttr("_tpu_embedding_layer", &name).ok()) {
    name.clear();
  }
  return name;
}

// The kernel of all enqueue ops, which differ in the names of their inputs.
class EnqueueKernel : public OpKernel {
 public:
  explicit EnqueueKernel(OpKernelConstruction* construction)
      : OpKernel(construction), core_(construction), name_(BatchName(construction)) {
    const std::string& op = construction->def().op();
    op_ = op;
    dense_ = op == "EnqueueTPUEmbeddingIntegerBatch";
    dynamic_ = op.rfind("Dynamic", 0) == 0;
    if (dense_) {
      kind_ = InputKind::kDense;
    } else if (op == "EnqueueTPUEmbeddingSparseBatch") {
      kind_ = InputKind::kRows;
    } else if (op == "EnqueueTPUEmbeddingSparseTensorBatch") {
      kind_ = InputKind::kIndices;
    } else if (op == "EnqueueTPUEmbeddingRaggedTensorBatch" ||
               op == "DynamicEnqueueTPUEmbeddingRaggedTensorBatch") {
      kind_ = InputKind::kRowSplits;
    } else {
      kind_ = InputKind::kByRank;
    }
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &num_inputs_));
    if (!dense_) OP_REQUIRES_OK(construction, construction->GetAttr("combiners", &combiners_));
    if (construction->HasAttr("table_ids")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("table_ids", &table_ids_));
    }
  }

  void Compute(OpKernelContext* context) override {
    Machine& machine = Machine::Get();
    OP_REQUIRES_OK(context, machine.wait_queue.Change([&]() -> absl::Status {
      if (machine.batch_queue == nullptr) return NotConfigured();
      return Enqueue(context, machine.batch_queue.get());
    }));
  }

 private:
  absl::Status Enqueue(OpKernelContext* context, BatchQueue* batch_queue) const {
    const TpuConfig& config = batch_queue->config();
    int core;
    TF_RETURN_IF_ERROR(FindCore(context, config.num_cores, &core));
    if (static_cast<size_t>(num_inputs_) != config.features.size()) {
      return Refuse("the enqueue op has inputs for ", num_inputs_,
                    " features, but the configuration has ", config.features.size(), ".");
    }
    bool training;
    TF_RETURN_IF_ERROR(Training(context->input(num_inputs_ * (dense_ ? 1 : 3)), &training));
    std::vector<Lookups> lookups(num_inputs_);
    for (int i = 0; i < num_inputs_; ++i) {
      const FeatureConfig& feature = config.features[i];
      if (!table_ids_.empty() && (table_ids_.size() != config.features.size() ||
                                  table_ids_[i] != feature.table)) {
        return Refuse("table_ids of the enqueue op do not fit the configuration, where input ", i,
                      " is ", Where(config, i), ".");
      }
      Input input;
      input.kind = kind_;
      input.op = op_;
      TF_RETURN_IF_ERROR(CombinerOf(config, i, &input.combiner));
      if (dense_) {
        input.ids = context->input(i);
      } else {
        input.index = context->input(i);
        input.ids = context->input(num_inputs_ + i);
        input.weights = context->input(2 * num_inputs_ + i);
      }
      TF_RETURN_IF_ERROR(InputReader(config, i).Read(input, &lookups[i]));
    }
    return batch_queue->Enqueue(core, name_, training, std::move(lookups));
  }

  absl::Status FindCore(OpKernelContext* context, int num_cores, int* core) const {
    if (!dynamic_) return core_.Find(num_cores, core);
    const Tensor& number = context->input(3 * num_inputs_ + 1);
    if (number.NumElements() != 1) return Refuse("`device_ordinal` is not a scalar.");
    return core_.Find(number.flat<int32_t>()(0), num_cores, core);
  }

  static absl::Status Training(const Tensor& mode, bool* training) {
    if (mode.NumElements() != 1) return Refuse("`mode_override` is not a scalar.");
    const std::string name(mode.flat<tensorflow::tstring>()(0));
    if (name != "train" && name != "inference" && name != "unspecified") {
      return Refuse("`mode_override` is '", AsText(name),
                    "'; it must be train, inference or unspecified.");
    }
    *training = name != "inference";
    return absl::OkStatus();
  }

  // Legacy programs have a combiner for each feature, others for each table. With as many features
  // as tables, both are in the same order.
  absl::Status CombinerOf(const TpuConfig& config, int feature, std::string* combiner) const {
    if (combiners_.empty()) {
      *combiner = "sum";
    } else if (combiners_.size() == config.features.size()) {
      *combiner = combiners_[feature];
    } else if (combiners_.size() == config.tables.size()) {
      *combiner = combiners_[config.features[feature].table];
    } else {
      return Refuse("the enqueue op has ", combiners_.size(), " combiners for ",
                    config.features.size(), " features of ", config.tables.size(), " tables.");
    }
    return absl::OkStatus();
  }

  const CoreOfOp core_;
  const std::string name_;
  std::string op_;
  InputKind kind_;
  bool dense_, dynamic_;
  int num_inputs_ = 0;
  std::vector<std::string> combiners_;
  std::vector<int> table_ids_;
};

SOFTWARE_TPU_KERNEL("EnqueueTPUEmbeddingArbitraryTensorBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("EnqueueTPUEmbeddingIntegerBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("EnqueueTPUEmbeddingRaggedTensorBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("EnqueueTPUEmbeddingSparseBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("EnqueueTPUEmbeddingSparseTensorBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("DynamicEnqueueTPUEmbeddingArbitraryTensorBatch", EnqueueKernel);
SOFTWARE_TPU_KERNEL("DynamicEnqueueTPUEmbeddingRaggedTensorBatch", EnqueueKernel);

class ReceiveKernel : public AsyncOpKernel {
 public:
  explicit ReceiveKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), core_(construction), name_(BatchName(construction)) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Machine& machine = Machine::Get();
    machine.wait_queue.Wait(context, std::move(done),
                         absl::StrCat("the activations of a batch", name_.empty() ? "" : " ",
                                      name_),
                         [this, context, &machine] { return Receive(context, &machine); });
  }

 private:
  std::optional<absl::Status> Receive(OpKernelContext* context, Machine* machine) const {
    if (machine->batch_queue == nullptr) return NotConfigured();
    const TpuConfig& config = machine->batch_queue->config();
    int core;
    TF_RETURN_IF_ERROR(core_.Find(config.num_cores, &core));
    if (static_cast<size_t>(context->num_outputs()) != config.features.size()) {
      return Refuse("RecvTPUEmbeddingActivations has ", context->num_outputs(),
                    " outputs, but the configuration has ", config.features.size(), " features.");
    }
    return machine->batch_queue->LookUp(core, name_, [&](int i, float** values) -> absl::Status {
      TensorShape shape;
      for (const int64_t size : config.features[i].shape) {
        TF_RETURN_IF_ERROR(shape.AddDimWithStatus(size));
      }
      TF_RETURN_IF_ERROR(
          shape.AddDimWithStatus(config.tables[config.features[i].table].dim));
      Tensor* activations;
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &activations));
      *values = activations->flat<float>().data();
      return absl::OkStatus();
    });
  }

  const CoreOfOp core_;
  const std::string name_;
};
SOFTWARE_TPU_KERNEL("RecvTPUEmbeddingActivations", ReceiveKernel);

class SendKernel : public AsyncOpKernel {
 public:
  explicit SendKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), core_(construction), name_(BatchName(construction)) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &num_gradients_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Machine& machine = Machine::Get();
    machine.wait_queue.Wait(context, std::move(done), "a batch to be looked up, to send gradients",
                         [this, context, &machine] { return Send(context, &machine); });
  }

 private:
  std::optional<absl::Status> Send(OpKernelContext* context, Machine* machine) const {
    if (machine->batch_queue == nullptr) return NotConfigured();
    const TpuConfig& config = machine->batch_queue->config();
    int core;
    TF_RETURN_IF_ERROR(core_.Find(config.num_cores, &core));
    if (config.mode == Mode::kInference) {
      return absl::FailedPreconditionError(
          "Software TPU: it is configured for inference and takes no gradients.");
    }
    const int num_rates = context->num_inputs() - num_gradients_;
    if (static_cast<size_t>(num_gradients_) != config.features.size() ||
        num_rates != config.num_rates) {
      return Refuse("SendTPUEmbeddingGradients has ", num_gradients_, " gradients and ", num_rates,
                    " learning rates, but the configuration has ", config.features.size(),
                    " features and ", config.num_rates, " dynamic learning rates.");
    }
    Gradients sent;
    for (int i = 0; i < num_gradients_; ++i) {
      const TableConfig& table = config.tables[config.features[i].table];
      if (!table.optimizer.trains()) {
        return absl::UnimplementedError(absl::StrCat(
            "Software TPU: table '", table.name,
            "' has an optimizer whose rule is not public; the table can only be looked up."));
      }
      const Tensor& gradient = context->input(i);
      if (!Fits(config.features[i], table, gradient.shape())) {
        return Refuse("the gradient of ", Where(config, i), " has the shape ",
                      gradient.shape().DebugString(), " instead of [", Joined(config.features[i]),
                      table.dim, "].");
      }
      sent.gradients.push_back(gradient);
    }
    for (int i = 0; i < num_rates; ++i) {
      const Tensor& rate = context->input(num_gradients_ + i);
      if (rate.NumElements() != 1) {
        return Refuse("learning rate ", i, " is not a scalar.");
      }
      sent.rates.push_back(rate.flat<float>()(0));
    }
    return machine->batch_queue->Send(core, name_, std::move(sent));
  }

  static bool Fits(const FeatureConfig& feature, const TableConfig& table,
                   const TensorShape& shape) {
    if (shape.dims() != static_cast<int>(feature.shape.size()) + 1) return false;
    for (size_t i = 0; i < feature.shape.size(); ++i) {
      if (shape.dim_size(static_cast<int>(i)) != feature.shape[i]) return false;
    }
    return shape.dim_size(shape.dims() - 1) == table.dim;
  }

  static std::string Joined(const FeatureConfig& feature) {
    std::string sizes;
    for (const int64_t size : feature.shape) absl::StrAppend(&sizes, size, ",");
    return sizes;
  }

  const CoreOfOp core_;
  const std::string name_;
  int num_gradients_ = 0;
};
SOFTWARE_TPU_KERNEL("SendTPUEmbeddingGradients", SendKernel);

}  // namespace software_tpu
