// Kernels of the ops that move ids from the host to the SparseCores. Each kernel works for a single
// core.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "host/arguments.h"
#include "software_sparsecore/occurrences.h"
#include "software_sparsecore/packing.h"
#include "software_sparsecore/partitions.h"
#include "software_tpu/machine.h"

namespace software_sparsecore {

using estimator_bridge::GetAttributes;
using estimator_bridge::GetLists;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class ToTriplesKernel : public OpKernel {
 public:
  explicit ToTriplesKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "sample_count", &feature_.samples,
                                 "num_sc_per_chip", &feature_.sparse_cores,
                                 "row_offset", &feature_.row_offset,
                                 "col_offset", &feature_.col_offset,
                                 "col_shift", &feature_.rotation, "num_sc_shards", &feature_.shards,
                                 "stacked_table_sample_count", &feature_.stack_samples));
    std::string combiner;
    OP_REQUIRES_OK(construction, construction->GetAttr("combiner", &combiner));
    OP_REQUIRES(construction, estimator_bridge::ReadCombiner(combiner, &feature_.combiner),
                Refuse("the combiner is '", combiner, "'; it must be sum, mean or sqrtn."));
    // Properties of the table that the strategy sets. They are not inputs of the op.
    feature_.where = "a feature";
    if (construction->HasAttr("_software_sparsecore_rows")) {
      OP_REQUIRES_OK(construction,
                     GetAttributes(construction, "_software_sparsecore_rows", &feature_.vocabulary,
                                   "_software_sparsecore_feature", &feature_.where));
    }
    OP_REQUIRES_OK(construction, CheckFeature(feature_));
  }

  void Compute(OpKernelContext* context) override {
    FeatureIds input;
    OP_REQUIRES_OK(context, Read(context, &input));
    std::vector<std::vector<Triple>> triples(static_cast<size_t>(feature_.sparse_cores));
    OP_REQUIRES_OK(context, AppendTriples(feature_, input, &triples));
    OpOutputList rows, cols, gains;
    OP_REQUIRES_OK(context, GetLists(context, "row_ids_list", &rows, "col_ids_list", &cols,
                                     "gains_list", &gains));
    for (int core = 0; core < feature_.sparse_cores; ++core) {
      const std::vector<Triple>& part = triples[static_cast<size_t>(core)];
      Tensor *row, *col, *gain;
      const TensorShape shape({static_cast<int64_t>(part.size())});
      OP_REQUIRES_OK(context, rows.allocate(core, shape, &row));
      OP_REQUIRES_OK(context, cols.allocate(core, shape, &col));
      OP_REQUIRES_OK(context, gains.allocate(core, shape, &gain));
      for (size_t i = 0; i < part.size(); ++i) {
        row->flat<int32_t>().data()[i] = part[i].row;
        col->flat<int32_t>().data()[i] = part[i].col;
        gain->flat<float>().data()[i] = part[i].gain;
      }
    }
  }

 private:
  // The rank distinguishes the kinds. An empty index of rank 1 means dense ids.
  absl::Status Read(OpKernelContext* context, FeatureIds* input) const {
    const Tensor &index = context->input(0), &ids = context->input(1), &weights = context->input(2);
    const auto refuse = [&] {
      return Refuse("the tensors of ", feature_.where, " with ", feature_.samples,
                    " samples do not fit together: the index has the shape ",
                    index.shape().DebugString(), ", the ids ", ids.shape().DebugString(),
                    " and the weights ", weights.shape().DebugString(), ".");
    };
    input->count = ids.NumElements();
    input->one_weight = weights.dims() == 0;
    const bool weighted = input->one_weight ||
                          (weights.dims() == 1 && weights.NumElements() == input->count);
    if (ids.dims() != 1 || !weighted) return refuse();
    input->ids = ids.flat<int32_t>().data();
    input->weights = weights.flat<float>().data();
    if (index.dims() == 2) {
      if (index.dim_size(0) != input->count || index.dim_size(1) != 2) return refuse();
      // An empty tensor has no data, and no data means no index.
      if (input->count > 0) input->indices = index.flat<int32_t>().data();
    } else if (index.dims() == 1 && index.NumElements() != 0) {
      if (index.NumElements() != feature_.samples + 1) return refuse();
      input->splits = index.flat<int32_t>().data();
    } else if (index.dims() != 1) {
      return refuse();
    }
    return absl::OkStatus();
  }

  FeatureInStack feature_;
};
SOFTWARE_TPU_KERNEL("ConvertToListOfSparseCoreCooTensors", ToTriplesKernel);

// The base of the two ops that sort the triples of one SparseCore's samples.
class SortingKernel : public OpKernel {
 public:
  explicit SortingKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    int64_t replicas, sparse_cores;
    std::vector<int64_t> samples;
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "table_name", &table_, "num_replica", &replicas,
                                 "num_sc_per_chip", &sparse_cores, "sample_count_list", &samples,
                                 "col_offset_list", &offsets_));
    OP_REQUIRES(construction,
                replicas <= kMostSparseCores && sparse_cores <= kMostSparseCores &&
                    IsPowerOfTwo(replicas * sparse_cores) &&
                    replicas * sparse_cores <= kMostSparseCores,
                absl::FailedPreconditionError(absl::StrCat(
                    "Software SparseCore: there are ", replicas, " cores with ", sparse_cores,
                    " SparseCores each for table ", table_, "; together they must be a power of "
                    "two.")));
    shards_ = replicas * sparse_cores;
    bool sound = samples.size() == offsets_.size();
    for (const int64_t count : samples) {
      sound = sound && count >= 1 && count <= std::numeric_limits<int32_t>::max() - samples_;
      if (sound) samples_ += count;
    }
    OP_REQUIRES(construction, sound && samples_ > 0,
                Refuse("sample_count_list and col_offset_list of table ", table_,
                       " do not fit each other."));
  }

 protected:
  absl::Status Sort(OpKernelContext* context, Partitions* partitions) const {
    OpInputList rows, cols, gains;
    TF_RETURN_IF_ERROR(GetLists(context, "row_ids_list", &rows, "col_ids_list", &cols,
                                "gains_list", &gains));
    if (static_cast<size_t>(rows.size()) != offsets_.size()) {
      return Refuse("table ", table_, " has triples of ", rows.size(),
                    " features, but col_offset_list has ", offsets_.size(), ".");
    }
    std::vector<FeatureTriples> features;
    for (int i = 0; i < rows.size(); ++i) {
      const int64_t count = rows[i].NumElements();
      if (cols[i].NumElements() != count || gains[i].NumElements() != count) {
        return Refuse("feature ", i, " of table ", table_, " has ", count, " rows, ",
                      cols[i].NumElements(), " columns and ", gains[i].NumElements(), " gains.");
      }
      FeatureTriples feature{offsets_[static_cast<size_t>(i)], {}};
      for (int64_t k = 0; k < count; ++k) {
        const int32_t row = rows[i].flat<int32_t>().data()[k];
        if (row < 0) {
          return Refuse("a row id of table ", table_, " is ", row, ".");
        }
        feature.triples.push_back(
            {row, cols[i].flat<int32_t>().data()[k], gains[i].flat<float>().data()[k]});
      }
      features.push_back(std::move(feature));
    }
    *partitions = Partition(std::move(features), shards_, samples_);
    return absl::OkStatus();
  }

  std::string table_;
  std::vector<int64_t> offsets_;
  int64_t shards_ = 1, samples_ = 0;
};

class SortKernel : public SortingKernel {
 public:
  explicit SortKernel(OpKernelConstruction* construction) : SortingKernel(construction) {
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "max_ids_per_sparse_core", &max_ids_,
                                 "max_unique_ids_per_sparse_core", &max_distinct_));
  }

  void Compute(OpKernelContext* context) override {
    Partitions partitions;
    OP_REQUIRES_OK(context, Sort(context, &partitions));
    OP_REQUIRES_OK(context, CheckLimits(partitions, max_ids_, max_distinct_, table_));
    int64_t count = 0;
    for (const auto& ids : partitions.ids) count += static_cast<int64_t>(ids.size());
    Tensor *samples, *tokens, *gains, *ends;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count}), &samples));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({count}), &tokens));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({count}), &gains));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({shards_ + 1}), &ends));
    int64_t at = 0, partition = 0;
    ends->flat<int32_t>().data()[0] = 0;
    for (const auto& ids : partitions.ids) {
      for (const Routed& id : ids) {
        samples->flat<int32_t>().data()[at] = id.sample;
        tokens->flat<int32_t>().data()[at] = id.token;
        gains->flat<float>().data()[at++] = id.gain;
      }
      ends->flat<int32_t>().data()[++partition] = static_cast<int32_t>(at);
    }
  }

 private:
  int64_t max_ids_ = 0, max_distinct_ = 0;
};
SOFTWARE_TPU_KERNEL("SortListOfSparseCoreCooTensors", SortKernel);

class StatisticsKernel : public SortingKernel {
 public:
  using SortingKernel::SortingKernel;

  void Compute(OpKernelContext* context) override {
    Partitions partitions;
    OP_REQUIRES_OK(context, Sort(context, &partitions));
    size_t most = 0;
    for (const auto& ids : partitions.ids) most = std::max(most, ids.size());
    Tensor *ids, *distinct;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &distinct));
    ids->scalar<int32_t>()() = static_cast<int32_t>(most);
    distinct->scalar<int32_t>()() =
        *std::max_element(partitions.distinct.begin(), partitions.distinct.end());
  }
};
SOFTWARE_TPU_KERNEL("GetStatsFromListOfSparseCoreCooTensors", StatisticsKernel);

class PackKernel : public OpKernel {
 public:
  explicit PackKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    int64_t replicas;
    OP_REQUIRES_OK(construction,
                   GetAttributes(construction, "table_name", &settings_.table,
                                 "allow_id_dropping", &settings_.drops, "num_replica", &replicas,
                                 "num_sc_per_chip", &settings_.sparse_cores,
                                 "sample_count_per_sc", &settings_.samples,
                                 "max_ids_per_chip_per_sample", &settings_.max_ids_per_sample,
                                 "max_minibatches_per_sc", &settings_.max_minibatches));
    OP_REQUIRES(construction,
                replicas <= kMostSparseCores && settings_.sparse_cores <= kMostSparseCores,
                Refuse("table ", settings_.table, " is for ", replicas, " cores."));
    settings_.shards = replicas * settings_.sparse_cores;
    OP_REQUIRES_OK(construction, CheckPackSettings(settings_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<SortedIds> sorted;
    OP_REQUIRES_OK(context, Read(context, &sorted));
    uint64_t splits = 0;
    const Tensor& split_bits = context->input(context->num_inputs() - 1);
    for (int64_t i = 0; i < split_bits.NumElements(); ++i) {
      splits |= static_cast<uint64_t>(split_bits.flat<int64_t>().data()[i]);
    }
    Tensor *pointers, *samples, *tokens, *gains;
    const TensorShape room({settings_.capacity()});
    OP_REQUIRES_OK(context, context->allocate_output(
        0, TensorShape({settings_.num_pointers(settings_.max_minibatches)}), &pointers));
    OP_REQUIRES_OK(context, context->allocate_output(1, room, &samples));
    OP_REQUIRES_OK(context, context->allocate_output(2, room, &tokens));
    OP_REQUIRES_OK(context, context->allocate_output(3, room, &gains));
    Packed packed{pointers->flat<int32_t>().data(), samples->flat<int32_t>().data(),
                  tokens->flat<int32_t>().data(), gains->flat<float>().data()};
    OP_REQUIRES_OK(context, Pack(settings_, sorted, splits, &packed));
    // The rest is not read, but every run of a step must give the same bytes.
    std::fill(packed.pointers + packed.num_pointers, packed.pointers + pointers->NumElements(), 0);
    std::fill(packed.samples + packed.num_ids, packed.samples + room.dim_size(0), kPadId);
    std::fill(packed.tokens + packed.num_ids, packed.tokens + room.dim_size(0), kPadId);
    std::fill(packed.gains + packed.num_ids, packed.gains + room.dim_size(0), kPadGain);
    if (packed.dropped > 0) {
      LOG(WARNING) << "Software SparseCore: table " << settings_.table << " drops "
                   << packed.dropped << " ids, because the buffer has no room for them.";
    }
    const int64_t sizes[] = {packed.num_pointers, packed.num_ids, packed.minibatches};
    for (int i = 0; i < 3; ++i) {
      Tensor* size;
      OP_REQUIRES_OK(context, context->allocate_output(4 + i, {}, &size));
      size->scalar<int32_t>()() = static_cast<int32_t>(sizes[i]);
    }
  }

 private:
  absl::Status Read(OpKernelContext* context, std::vector<SortedIds>* sorted) const {
    OpInputList samples, tokens, gains, ends;
    TF_RETURN_IF_ERROR(GetLists(context, "sorted_row_ids_list", &samples,
                                "sorted_col_ids_list", &tokens, "sorted_gains_list", &gains,
                                "id_counts_list", &ends));
    for (int i = 0; i < samples.size(); ++i) {
      const int64_t count = samples[i].NumElements();
      if (tokens[i].NumElements() != count || gains[i].NumElements() != count ||
          ends[i].NumElements() < 2) {
        return Refuse("SparseCore ", i, " of table ", settings_.table, " has ", count, " samples, ",
                      tokens[i].NumElements(), " tokens, ", gains[i].NumElements(), " gains and ",
                      ends[i].NumElements(), " id counts.");
      }
      sorted->push_back({samples[i].flat<int32_t>().data(), tokens[i].flat<int32_t>().data(),
                         ends[i].flat<int32_t>().data(), gains[i].flat<float>().data(), count,
                         ends[i].NumElements()});
    }
    return absl::OkStatus();
  }

  PackSettings settings_;
};
SOFTWARE_TPU_KERNEL("ConvertToSparseCoreCsrWrappedCooTensor", PackKernel);

// Passes tensors to the device, each up to its unpadded size if sizes are given.
class HandOnKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int count = context->num_outputs();
    const bool sized = context->num_inputs() == 2 * count;
    OP_REQUIRES(context, sized || context->num_inputs() == count,
                Refuse("there are ", context->num_inputs() - count, " unpadded sizes for ", count,
                       " tensors."));
    for (int i = 0; i < count; ++i) {
      const Tensor& tensor = context->input(i);
      if (!sized) {
        context->set_output(i, tensor);
        continue;
      }
      const Tensor& unpadded = context->input(count + i);
      OP_REQUIRES(context, unpadded.NumElements() == 1 && tensor.dims() >= 1,
                  Refuse("tensor ", i, " is a scalar, or its unpadded size is not a scalar."));
      const int32_t size = unpadded.flat<int32_t>().data()[0];
      OP_REQUIRES(context, size >= 0 && size <= tensor.dim_size(0),
                  Refuse("tensor ", i, " has an unpadded size of ", size, ", but a size of ",
                         tensor.dim_size(0), "."));
      context->set_output(i, tensor.Slice(0, size));
    }
  }
};
SOFTWARE_TPU_KERNEL("TPUCopyWithDynamicShape", HandOnKernel);
SOFTWARE_TPU_KERNEL("TPUAnnotateTensorsWithDynamicShape", HandOnKernel);

}  // namespace software_sparsecore
