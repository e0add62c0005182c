// Kernels of the lookup and of the updates, for which all cores meet.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "host/arguments.h"
#include "host/rows.h"
#include "rules/rule.h"
#include "rules/sparsecore.h"
#include "software_sparsecore/meeting.h"
#include "software_sparsecore/packing.h"

namespace software_sparsecore {

using estimator_bridge::GetAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

using Contexts = std::vector<OpKernelContext*>;

// One id of a sample, and its row in a core's part of the table.
struct Occurrence {
  int64_t source, sample, row;  // core, sample of that core, row
  float gain;
};

// The common inputs of lookup and updates, from all cores, checked.
class StepOfTable {
 public:
  // Reads the inputs. `samples` is the number of samples of the stack on a core.
  static absl::Status Read(const Contexts& contexts, int64_t samples, const std::string& table,
                           StepOfTable* step) {
    const int64_t sparse_cores = Meeting::Get().sparse_cores();
    const int64_t cores = static_cast<int64_t>(contexts.size());
    step->contexts_ = &contexts;
    step->table_ = table;
    step->bounds_ = {cores * sparse_cores, sparse_cores, samples / sparse_cores, 0};
    if (samples % sparse_cores != 0) {
      return Refuse("table ", table, " has ", samples, " samples on a core, which cannot be ",
                    "divided equally among its ", sparse_cores, " SparseCores.");
    }
    for (OpKernelContext* context : contexts) {
      const Tensor* part;
      TF_RETURN_IF_ERROR(context->input("embedding_table", &part));
      if (part->dims() != 2 || part->dim_size(0) % sparse_cores != 0 ||
          part->shape() != step->part(0).shape()) {
        return Refuse("the part of table ", table, " on a core has the shape ",
                      part->shape().DebugString(), "; each of its ", sparse_cores,
                      " SparseCores, and each core, must have the same number of rows.");
      }
      step->bounds_.rows_per_sparse_core = part->dim_size(0) / sparse_cores;
      PackedIds packed;
      TF_RETURN_IF_ERROR(ReadIds(context, table, &packed));
      step->packed_.push_back(packed);
    }
    return absl::OkStatus();
  }

  // A required input of the op on a core.
  const Tensor& input(int64_t core, const char* name) const {
    const Tensor* tensor = nullptr;
    TF_CHECK_OK((*contexts_)[static_cast<size_t>(core)]->input(name, &tensor));
    return *tensor;
  }
  const Tensor& part(int64_t core) const { return input(core, "embedding_table"); }
  OpKernelContext* context(int64_t core) const { return (*contexts_)[static_cast<size_t>(core)]; }
  int64_t cores() const { return static_cast<int64_t>(contexts_->size()); }
  int64_t rows() const { return part(0).dim_size(0); }
  int64_t width() const { return part(0).dim_size(1); }

  // Calls `visit(core that has the row, occurrence)` in the order in which gradients are summed: by
  // sending core, then its SparseCores, then position.
  template <class Visit>
  absl::Status ForEach(const Visit& visit) const {
    const int64_t per = bounds_.sparse_cores;
    for (int64_t source = 0; source < cores(); ++source) {
      TF_RETURN_IF_ERROR(ForEachId(
          packed_[static_cast<size_t>(source)], bounds_, table_,
          [&](int64_t sample, int64_t shard, int64_t token, float gain) {
            const int64_t row = shard % per * bounds_.rows_per_sparse_core + token;
            visit(shard / per, Occurrence{source, sample, row, gain});
          }));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status ReadIds(OpKernelContext* context, const std::string& table,
                              PackedIds* packed) {
    const Tensor *pointers, *samples, *tokens, *gains, *minibatches;
    TF_RETURN_IF_ERROR(context->input("row_pointers", &pointers));
    TF_RETURN_IF_ERROR(context->input("sorted_sample_ids", &samples));
    TF_RETURN_IF_ERROR(context->input("sorted_token_ids", &tokens));
    TF_RETURN_IF_ERROR(context->input("sorted_gains", &gains));
    TF_RETURN_IF_ERROR(context->input("num_minibatches_per_physical_sparse_core", &minibatches));
    const int64_t count = samples->NumElements();
    if (tokens->NumElements() != count || gains->NumElements() != count ||
        minibatches->NumElements() != 1) {
      return Refuse("table ", table, " has ", count, " sample ids, ", tokens->NumElements(),
                    " tokens, ", gains->NumElements(), " gains and ", minibatches->NumElements(),
                    " numbers of minibatches.");
    }
    *packed = {pointers->flat<int32_t>().data(), samples->flat<int32_t>().data(),
               tokens->flat<int32_t>().data(),   gains->flat<float>().data(),
               pointers->NumElements(),          count,
               minibatches->flat<int32_t>().data()[0]};
    return absl::OkStatus();
  }

  const Contexts* contexts_ = nullptr;
  std::string table_;
  Bounds bounds_{};
  std::vector<PackedIds> packed_;
};

// An op of a table on one core, which runs once all cores have reached it.
class TableKernel : public AsyncOpKernel {
 public:
  explicit TableKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), core_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("table_name", &table_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Meeting::Get().Meet(absl::StrCat(type_string(), " of table ", table_), core_, context,
                        std::move(done), [this](const Contexts& all) { return Work(all); });
  }

 protected:
  virtual absl::Status Work(const Contexts& contexts) const = 0;

  const software_tpu::CoreOfOp core_;
  std::string table_;
};

class LookupKernel : public TableKernel {
 public:
  explicit LookupKernel(OpKernelConstruction* construction) : TableKernel(construction) {
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "input_size", &samples_,
                                 "quantization_config_low", &quantize_.low,
                                 "quantization_config_high", &quantize_.high,
                                 "quantization_config_num_buckets", &quantize_.buckets));
    quantize_.enabled = quantize_.buckets > 1;
  }

 private:
  absl::Status Work(const Contexts& contexts) const override {
    StepOfTable step;
    TF_RETURN_IF_ERROR(StepOfTable::Read(contexts, samples_, table_, &step));
    const int64_t width = step.width();
    std::vector<float*> activations;
    for (OpKernelContext* context : contexts) {
      Tensor* output;
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({samples_, width}), &output));
      activations.push_back(output->flat<float>().data());
      std::fill_n(activations.back(), samples_ * width, 0.0f);
    }
    return step.ForEach([&](int64_t core, const Occurrence& at) {
      const float* row = step.part(core).flat<float>().data() + at.row * width;
      float* sum = activations[static_cast<size_t>(at.source)] + at.sample * width;
      for (int64_t i = 0; i < width; ++i) {
        sum[i] += at.gain * (quantize_.enabled ? quantize_(row[i]) : row[i]);
      }
    });
  }

  int64_t samples_ = 0;
  software_tpu::Quantization quantize_;  // How the device rounds is not public.
};
SOFTWARE_TPU_KERNEL("XlaSparseDenseMatmulWithStaticBufferSize", LookupKernel);

// The update by one rule. Every row that was looked up is updated once, with the sum of its
// gradients over all cores, even if the sum is zero.
template <class Rule>
class UpdateKernel : public TableKernel {
 public:
  explicit UpdateKernel(OpKernelConstruction* construction) : TableKernel(construction) {
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "clip_weight_min", &settings_.clip_weight_min,
                                 "clip_weight_max", &settings_.clip_weight_max));
    OP_REQUIRES(construction, settings_.clip_weight_min <= settings_.clip_weight_max,
                Refuse("clip_weight_min ", settings_.clip_weight_min, " of table ", table_,
                       " must not exceed clip_weight_max ", settings_.clip_weight_max, "."));
    absl::Status status;
    rule_.ReadAttributes([&](const char* name, auto* setting) {
      if (status.ok()) status = construction->GetAttr(name, setting);
    });
    OP_REQUIRES_OK(construction, status);
  }

 private:
  static constexpr int kSlots = static_cast<int>(Rule::kInputs.size());

  absl::Status Work(const Contexts& contexts) const override {
    const Tensor* gradients;
    TF_RETURN_IF_ERROR(contexts[0]->input("activation_gradients", &gradients));
    if (gradients->dims() != 2) {
      return Refuse("the gradients of table ", table_, " have the shape ",
                    gradients->shape().DebugString(), ".");
    }
    StepOfTable step;
    TF_RETURN_IF_ERROR(StepOfTable::Read(contexts, gradients->dim_size(0), table_, &step));
    TF_RETURN_IF_ERROR(CheckShapes(step, gradients->dim_size(0)));
    std::vector<std::vector<Occurrence>> of_cores(contexts.size());
    TF_RETURN_IF_ERROR(step.ForEach([&](int64_t core, const Occurrence& at) {
      of_cores[static_cast<size_t>(core)].push_back(at);
    }));
    for (int64_t core = 0; core < step.cores(); ++core) {
      TF_RETURN_IF_ERROR(Update(step, core, of_cores[static_cast<size_t>(core)]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckShapes(const StepOfTable& step, int64_t samples) const {
    const TensorShape gradients({samples, step.width()});
    for (int64_t core = 0; core < step.cores(); ++core) {
      bool fits = step.input(core, "activation_gradients").shape() == gradients &&
                  step.input(core, "learning_rate").NumElements() == 1;
      for (const char* slot : Rule::kInputs) {
        fits = fits && step.input(core, slot).shape() == step.part(core).shape();
      }
      if (!fits) {
        return Refuse("the gradients, the learning rate or a slot of table ", table_,
                      " does not have the shape that it has on other cores, with ", samples,
                      " samples and ", step.width(), " columns.");
      }
    }
    return absl::OkStatus();
  }

  // Computes the updated part of one core.
  absl::Status Update(const StepOfTable& step, int64_t core,
                      const std::vector<Occurrence>& occurrences) const {
    float* updated[1 + estimator_bridge::kMaxSlots] = {};
    for (int i = 0; i <= kSlots; ++i) {
      const Tensor& before = step.input(core, i == 0 ? "embedding_table" : Slot(i - 1));
      Tensor* after;
      TF_RETURN_IF_ERROR(step.context(core)->allocate_output(i, before.shape(), &after));
      updated[i] = after->flat<float>().data();
      std::copy_n(before.flat<float>().data(), before.NumElements(), updated[i]);
    }
    estimator_bridge::Grouping grouping;
    const int64_t count = static_cast<int64_t>(occurrences.size());
    grouping.Reset(step.rows(), count, count);
    if (!grouping.ok()) return Refuse("table ", table_, " has too many ids.");
    for (int64_t i = 0; i < count; ++i) {
      grouping.Set(i, occurrences[static_cast<size_t>(i)].row, i);
    }
    grouping.Sort();
    const estimator_bridge::ClipAndDecay around(settings_, /*lr=*/0.0f);
    const float rate = step.input(core, "learning_rate").template flat<float>().data()[0];
    const int64_t width = step.width();
    std::vector<float> sum(static_cast<size_t>(width));
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      const int64_t row = grouping.id(begin);
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (; end < count && grouping.id(end) == row; ++end) {
        const Occurrence& at = occurrences[static_cast<size_t>(grouping.with(end))];
        const float* gradient =
            step.input(at.source, "activation_gradients").template flat<float>().data() +
            at.sample * width;
        for (int64_t i = 0; i < width; ++i) sum[static_cast<size_t>(i)] += at.gain * gradient[i];
      }
      estimator_bridge::RowAt place{updated[0] + row * width, {}, sum.data()};
      for (int i = 0; i < kSlots; ++i) place.slots[i] = updated[1 + i] + row * width;
      estimator_bridge::OneRow rows(place, width);
      rule_.Update(rate, estimator_bridge::Step<kSlots>(around, &rows));
    }
    return absl::OkStatus();
  }

  static const char* Slot(int number) {
    if constexpr (kSlots == 0) {
      return "";
    } else {
      return Rule::kInputs[static_cast<size_t>(number)];
    }
  }

  Rule rule_;
  estimator_bridge::SharedSettings settings_;
};

// Registers the op of one rule. This is a function template, because the macro defines a static
// variable, and each rule needs its own.
template <class Rule>
void RegisterUpdate(const Rule&) {
  const std::string op =
      absl::StrCat("XlaSparseDenseMatmulGradWith", Rule::kUpdateOp, "AndStaticBufferSize");
  SOFTWARE_TPU_KERNEL(op.c_str(), UpdateKernel<Rule>);
}

static const bool kUpdatesAreRegistered = [] {
  estimator_bridge::sparsecore::ForEachRule([](const auto& rule) { RegisterUpdate(rule); });
  return true;
}();

}  // namespace software_sparsecore
