// Kernels of the ops that start and end a TPU, mark what runs on it, and feed it.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "software_tpu/config.h"
#include "software_tpu/machine.h"

namespace software_tpu {

inline absl::Status CheckGeneration() {
  Machine& machine = Machine::Get();
  return machine.wait_queue.Change([&]() -> absl::Status {
    if (machine.sparse_cores == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "Software TPU: it has SparseCores, not the embedding hardware of the first generation that "
        "ConfigureTPUEmbedding is for. Use TPUEmbeddingV2, or hardware='v1'.");
  });
}

// Configures the machine for embeddings. Drops earlier tables and batches, and ends waiting ops
// with an error. An invalid configuration changes nothing.
inline absl::Status ConfigureEmbedding(const std::string& serialized) {
  TpuConfig config;
  TF_RETURN_IF_ERROR(CheckGeneration());
  TF_RETURN_IF_ERROR(ParseConfig(serialized, &config));
  std::unique_ptr<BatchQueue> batch_queue;
  TF_RETURN_IF_ERROR(BatchQueue::Make(std::move(config), &batch_queue));
  Machine& machine = Machine::Get();
  return machine.wait_queue.FailAll(absl::StatusCode::kAborted, "it was configured again", [&] {
    machine.Clear();
    machine.batch_queue = std::move(batch_queue);
    return absl::OkStatus();
  });
}

inline absl::Status Reset(const std::string& why) {
  Machine& machine = Machine::Get();
  return machine.wait_queue.FailAll(absl::StatusCode::kAborted, why, [&] {
    machine.Clear();
    return absl::OkStatus();
  });
}

class ConfigureEmbeddingKernel : public OpKernel {
 public:
  explicit ConfigureEmbeddingKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("config", &config_));
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, ConfigureEmbedding(config_));
  }

 private:
  std::string config_;
};
SOFTWARE_TPU_KERNEL("ConfigureTPUEmbedding", ConfigureEmbeddingKernel);

class ConfigureSystemKernel : public OpKernel {
 public:
  explicit ConfigureSystemKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("embedding_config", &embedding_config_));
    if (embedding_config_.empty()) {
      OP_REQUIRES_OK(construction,
                     construction->GetAttr("tpu_embedding_config", &embedding_config_));
    }
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Reset("it was initialized"));
    if (!embedding_config_.empty()) {
      OP_REQUIRES_OK(context, ConfigureEmbedding(embedding_config_));
    }
    Tensor* topology;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &topology));
    topology->scalar<tensorflow::tstring>()() = Topology();
  }

 private:
  // A TopologyProto: one host, a row of chips with one core each.
  static std::string Topology() {
    const int cores = Machine::Get().num_cores;
    std::string mesh, coordinates;
    for (int axis = 0; axis < 4; ++axis) AppendVarint(axis == 0 ? cores : 1, &mesh);
    for (int core = 0; core < cores; ++core) {
      for (int axis = 0; axis < 4; ++axis) AppendVarint(axis == 0 ? core : 0, &coordinates);
    }
    std::string proto;
    AppendBytes(/*field=*/1, mesh, &proto);  // mesh_shape
    AppendNumber(/*field=*/2, 1, &proto);    // num_tasks
    AppendNumber(/*field=*/3, cores, &proto);  // num_tpu_devices_per_task
    AppendBytes(/*field=*/4, coordinates, &proto);  // device_coordinates
    const int sparse_cores = Machine::Get().sparse_cores;
    std::string hardware;
    AppendNumber(/*field=*/1, sparse_cores > 0 ? 2 : 1, &hardware);  // embedding_feature: V1 or V2
    AppendNumber(/*field=*/2, sparse_cores, &hardware);  // num_embedding_devices_per_chip
    AppendBytes(/*field=*/5, hardware, &proto);  // tpu_hardware_feature
    return proto;
  }
  static void AppendVarint(uint64_t value, std::string* to) {
    for (; value > 127; value >>= 7) to->push_back(static_cast<char>(value | 128));
    to->push_back(static_cast<char>(value));
  }
  static void AppendNumber(int field, uint64_t value, std::string* to) {
    AppendVarint(field << 3, to);
    AppendVarint(value, to);
  }
  static void AppendBytes(int field, const std::string& value, std::string* to) {
    AppendVarint(field << 3 | 2, to);
    AppendVarint(value.size(), to);
    *to += value;
  }

  std::string embedding_config_;
};
SOFTWARE_TPU_KERNEL("ConfigureDistributedTPU", ConfigureSystemKernel);

class ShutdownKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Reset("it was shut down"));
  }
};
SOFTWARE_TPU_KERNEL("ShutdownDistributedTPU", ShutdownKernel);

class IsInitializedKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    Tensor* initialized;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &initialized));
    Machine& machine = Machine::Get();
    OP_REQUIRES_OK(context, machine.wait_queue.Change([&] {
      initialized->scalar<bool>()() = machine.batch_queue != nullptr;
      return absl::OkStatus();
    }));
  }
};
SOFTWARE_TPU_KERNEL("IsTPUEmbeddingInitialized", IsInitializedKernel);

// A TPU's compiler would replicate a computation here. The software TPU runs it in place.
class MetadataKernel : public OpKernel {
 public:
  explicit MetadataKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    int replicas;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_replicas", &replicas));
    OP_REQUIRES(construction, replicas == 1,
                absl::UnimplementedError(absl::StrCat(
                    "Software TPU: tpu.replicate with ", replicas,
                    " replicas needs a TPU's compiler; use one replica, or a SoftTPUStrategy.")));
  }
  void Compute(OpKernelContext*) override {}
};
SOFTWARE_TPU_KERNEL("TPUReplicateMetadata", MetadataKernel);

class IdentityKernel : public OpKernel {
 public:
  explicit IdentityKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    const std::string& op = construction->def().op();
    if (op == "TPUEmbeddingActivations") {
      input_ = 1;
      return;
    }
    int replicas;
    OP_REQUIRES_OK(construction,
                   construction->GetAttr(op == "TPUReplicatedInput" ? "N" : "num_replicas",
                                         &replicas));
    OP_REQUIRES(construction, replicas == 1,
                absl::UnimplementedError(absl::StrCat("Software TPU: ", op, " has ", replicas,
                                                      " replicas; only one can run in place.")));
  }
  void Compute(OpKernelContext* context) override {
    context->set_output(0, context->input(input_));
  }

 private:
  int input_ = 0;
};
SOFTWARE_TPU_KERNEL("TPUReplicatedInput", IdentityKernel);
SOFTWARE_TPU_KERNEL("TPUReplicatedOutput", IdentityKernel);
SOFTWARE_TPU_KERNEL("TPUEmbeddingActivations", IdentityKernel);

// Returns an empty proto, because nothing was compiled.
class CompilationResultKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    Tensor* result;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &result));
    result->scalar<tensorflow::tstring>()() = "";
  }
};
SOFTWARE_TPU_KERNEL("TPUCompilationResult", CompilationResultKernel);

class CrossReplicaSumKernel : public AsyncOpKernel {
 public:
  explicit CrossReplicaSumKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), core_(construction) {
    if (construction->HasAttr("_software_tpu_sum")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("_software_tpu_sum", &key_));
    }
    if (construction->HasAttr("_software_tpu_cores")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("_software_tpu_cores", &num_cores_));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Machine& machine = Machine::Get();
    const int num_cores = num_cores_ > 0 ? num_cores_ : machine.num_cores;
    int core;
    OP_REQUIRES_OK_ASYNC(context, core_.Find(num_cores, &core), done);
    auto part = std::make_shared<ReplicaSums::Part>();
    OP_REQUIRES_OK_ASYNC(context, Group(context->input(1), core, num_cores, &part->group), done);
    part->value = context->input(0);
    auto arrived = std::make_shared<bool>(false);
    machine.wait_queue.Wait(
        context, std::move(done),
        absl::StrCat("the other cores, in CrossReplicaSum on core ", core),
        [=, &machine]() -> std::optional<absl::Status> {
          if (!*arrived) {
            *arrived = true;
            machine.sums.Bring(key_, core, num_cores, part);
          }
          if (!part->ready) return std::nullopt;
          if (part->status.ok()) context->set_output(0, part->value);
          return part->status;
        },
        [=, &machine] { machine.sums.TakeBack(key_, part); });
  }

 private:
  // The cores that this core sums with. Without groups, all cores are one group.
  static absl::Status Group(const Tensor& groups, int core, int num_cores,
                            std::vector<int>* group) {
    if (groups.NumElements() == 0) {
      for (int other = 0; other < num_cores; ++other) group->push_back(other);
      return absl::OkStatus();
    }
    if (groups.dims() != 2) {
      return Refuse("the group assignment of CrossReplicaSum has rank ", groups.dims(),
                    " instead of 2.");
    }
    const auto cores = groups.matrix<int32_t>();
    for (int64_t row = 0; row < groups.dim_size(0); ++row) {
      bool mine = false;
      group->clear();
      for (int64_t i = 0; i < groups.dim_size(1); ++i) {
        const int32_t other = cores(row, i);
        if (other < 0 || other >= num_cores) {
          return Refuse("the group assignment of CrossReplicaSum names core ", other,
                        ", but there are ", num_cores, " core(s).");
        }
        mine = mine || other == core;
        group->push_back(other);
      }
      if (mine) return absl::OkStatus();
    }
    return Refuse("core ", core, " is in no group of its CrossReplicaSum.");
  }

  const CoreOfOp core_;
  std::string key_;
  int num_cores_ = 0;
};
SOFTWARE_TPU_KERNEL("CrossReplicaSum", CrossReplicaSumKernel);

// Infeed if `kIn`, else outfeed.
template <bool kIn>
class FeedKernel : public AsyncOpKernel {
 public:
  explicit FeedKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), core_(construction) {}

 protected:
  Feed& feed() const { return kIn ? Machine::Get().infeed : Machine::Get().outfeed; }
  const char* FeedName() const { return kIn ? "infeed" : "outfeed"; }

  const CoreOfOp core_;
};

template <bool kIn>
class FeedEnqueueKernel : public FeedKernel<kIn> {
 public:
  using FeedKernel<kIn>::FeedKernel;
  void ComputeAsync(OpKernelContext* context, AsyncOpKernel::DoneCallback done) override {
    Machine& machine = Machine::Get();
    int core;
    OP_REQUIRES_OK_ASYNC(context, this->core_.Find(machine.num_cores, &core), done);
    Feed::Tuple tuple;
    for (int i = 0; i < context->num_inputs(); ++i) tuple.push_back(context->input(i));
    OP_REQUIRES_OK_ASYNC(context, machine.wait_queue.Change([&] {
      this->feed().Put(core, std::move(tuple));
      return absl::OkStatus();
    }),
                         done);
    done();
  }
};
SOFTWARE_TPU_KERNEL("InfeedEnqueue", FeedEnqueueKernel<true>);
SOFTWARE_TPU_KERNEL("InfeedEnqueueTuple", FeedEnqueueKernel<true>);
SOFTWARE_TPU_KERNEL("OutfeedEnqueue", FeedEnqueueKernel<false>);
SOFTWARE_TPU_KERNEL("OutfeedEnqueueTuple", FeedEnqueueKernel<false>);

template <bool kIn>
class FeedDequeueKernel : public FeedKernel<kIn> {
 public:
  explicit FeedDequeueKernel(OpKernelConstruction* construction) : FeedKernel<kIn>(construction) {
    if (construction->HasAttr("shapes")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes_));
    } else {
      shapes_.resize(1);
      OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shapes_[0]));
    }
  }

  void ComputeAsync(OpKernelContext* context, AsyncOpKernel::DoneCallback done) override {
    Machine& machine = Machine::Get();
    int core;
    if (context->num_inputs() == 0) {
      OP_REQUIRES_OK_ASYNC(context, this->core_.Find(machine.num_cores, &core), done);
    } else {
      OP_REQUIRES_ASYNC(context, context->input(0).NumElements() == 1,
                        absl::InvalidArgumentError("Software TPU: device_ordinal is not a scalar."),
                        done);
      const int number = context->input(0).template flat<int32_t>()(0);
      OP_REQUIRES_OK_ASYNC(context, this->core_.Find(number, machine.num_cores, &core), done);
    }
    machine.wait_queue.Wait(context, std::move(done),
                         absl::StrCat("the ", this->FeedName(), " of core ", core),
                         [=, this]() -> std::optional<absl::Status> {
                           Feed::Tuple tuple;
                           if (!this->feed().Take(core, &tuple)) return std::nullopt;
                           return Give(context, tuple);
                         });
  }

 private:
  absl::Status Give(OpKernelContext* context, const Feed::Tuple& tuple) const {
    if (static_cast<int>(tuple.size()) != context->num_outputs()) {
      return Refuse("the ", this->FeedName(), " holds a tuple of ", tuple.size(),
                    " element(s), but is read as a tuple of ", context->num_outputs(), ".");
    }
    for (size_t i = 0; i < tuple.size(); ++i) {
      if (tuple[i].dtype() != context->expected_output_dtype(i) ||
          (i < shapes_.size() && !shapes_[i].IsCompatibleWith(tuple[i].shape()))) {
        return Refuse("element ", i, " of the ", this->FeedName(), " is ",
                      tensorflow::DataTypeString(tuple[i].dtype()), tuple[i].shape().DebugString(),
                      ", but is read as ",
                      tensorflow::DataTypeString(context->expected_output_dtype(i)),
                      i < shapes_.size() ? shapes_[i].DebugString() : "", ".");
      }
    }
    for (size_t i = 0; i < tuple.size(); ++i) context->set_output(i, tuple[i]);
    return absl::OkStatus();
  }

  std::vector<tensorflow::PartialTensorShape> shapes_;
};
SOFTWARE_TPU_KERNEL("InfeedDequeue", FeedDequeueKernel<true>);
SOFTWARE_TPU_KERNEL("InfeedDequeueTuple", FeedDequeueKernel<true>);
SOFTWARE_TPU_KERNEL("OutfeedDequeue", FeedDequeueKernel<false>);
SOFTWARE_TPU_KERNEL("OutfeedDequeueTuple", FeedDequeueKernel<false>);
SOFTWARE_TPU_KERNEL("OutfeedDequeueV2", FeedDequeueKernel<false>);
SOFTWARE_TPU_KERNEL("OutfeedDequeueTupleV2", FeedDequeueKernel<false>);

}  // namespace software_tpu
