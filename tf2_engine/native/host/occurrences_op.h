// Computes ids, cells and gains from an enqueued batch: the kernel of batch.occurrences.

#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "host/arguments.h"
#include "host/rows.h"
#include "host/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

// A feature, from the attributes of an op that reads enqueued batches. They are described where
// Tf2EngineOccurrences is registered.
struct InputFeature {
  enum Kind { kDense, kSparse, kRagged };
  static constexpr int64_t kMost = int64_t{1} << 31;

  Kind kind;
  Combiner combiner;
  bool weighted, sequence, check_samples;
  std::vector<int64_t> sizes;  // -1 means unknown
  int64_t per_sample = 1;
  int64_t rows, per_row;
  std::string where;

  int64_t cells() const { return sizes[0] < 0 ? -1 : sizes[0] * per_sample; }
  // Whether occurrences can be left out for this kind of input.
  bool cuts() const {
    return (kind == kSparse && sequence && sizes.size() > 1) || (kind == kRagged && per_row != 1);
  }
  // Whether ids are in order of their cells and share the gain of their cell, so that row splits
  // are enough.
  bool by_splits() const { return kind == kRagged && per_row == 1 && !weighted; }
  // A ragged sequence has one id per position, so there are no weights or combiners.
  bool has_gains() const {
    if (kind == kRagged && per_row != 1) return false;
    return weighted || (combiner != Combiner::kSum && kind != kDense);
  }

  // Reads all features of an op; `count` and `rows_of` are the names of two of the attributes.
  static absl::Status ReadAll(OpKernelConstruction* context, const char* count,
                              const char* rows_of, std::vector<InputFeature>* features) {
    std::vector<std::string> kinds, combiners, where;
    std::vector<bool> weighted, sequence, check_samples;
    std::vector<tensorflow::PartialTensorShape> sizes;
    std::vector<int64_t> rows, per_row;
    int num_features;
    TF_RETURN_IF_ERROR(GetAttributes(context, count, &num_features, "kinds", &kinds, "combiners",
                                     &combiners, "weighted", &weighted, "sequence", &sequence,
                                     "check_samples", &check_samples, "sizes", &sizes, rows_of,
                                     &rows, "per_row", &per_row, "where", &where));
    const size_t wanted = static_cast<size_t>(num_features);
    for (const size_t size :
         {kinds.size(), combiners.size(), weighted.size(), sequence.size(), check_samples.size(),
          sizes.size(), rows.size(), per_row.size(), where.size()}) {
      if (size != wanted) {
        return errors::InvalidArgument("An attribute has ", size, " entries for ", num_features,
                                       " features.");
      }
    }
    features->resize(wanted);
    for (size_t i = 0; i < wanted; ++i) {
      InputFeature& feature = (*features)[i];
      if (kinds[i] != "dense" && kinds[i] != "sparse" && kinds[i] != "ragged") {
        return errors::InvalidArgument(where[i], ": there is no kind '", kinds[i], "'.");
      }
      if (!ReadCombiner(combiners[i], &feature.combiner)) {
        return errors::InvalidArgument(where[i], ": there is no combiner '", combiners[i], "'.");
      }
      if (sizes[i].dims() < 1 || per_row[i] < 1 || rows[i] < 1) {
        return errors::InvalidArgument(where[i], ": sizes, rows and per_row must be positive.");
      }
      feature.kind = kinds[i] == "dense" ? kDense : kinds[i] == "sparse" ? kSparse : kRagged;
      feature.weighted = weighted[i];
      feature.sequence = sequence[i];
      feature.check_samples = check_samples[i];
      for (int axis = 0; axis < sizes[i].dims(); ++axis) {
        const int64_t size = sizes[i].dim_size(axis);
        feature.sizes.push_back(size);
        if (axis > 0 && size <= 0) {
          return errors::InvalidArgument(where[i], ": only the first size may be unknown.");
        }
        if (axis > 0) feature.per_sample *= size;
        if (feature.per_sample > kMost) {
          return errors::InvalidArgument(where[i], ": an activation is too large.");
        }
      }
      feature.rows = rows[i];
      feature.per_row = per_row[i];
      feature.where = where[i];
    }
    return absl::OkStatus();
  }

  absl::Status OutsideSizes(int64_t axis, int64_t coordinate) const {
    std::string shown = "(";  // as Python prints a tuple
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0) shown += ", ";
      shown += sizes[i] < 0 ? "None" : std::to_string(sizes[i]);
    }
    return errors::InvalidArgument(where, ": a coordinate on axis ", axis, " is outside ", shown,
                                   sizes.size() == 1 ? ",)" : ")", ". It is ", coordinate);
  }
  // The error of the row split `row` of `rows`, which follows `before`.
  absl::Status BadSplit(int64_t row, int64_t rows, int64_t split, int64_t before,
                        int64_t count) const {
    if (row == rows && (row > 0 || split == 0) && split >= before && split <= count) {
      return errors::InvalidArgument(where, ": the last row split is ", split, ", but there are ",
                                     count, " ids.");
    }
    return errors::InvalidArgument(where, ": row split ", row, " is ", split, " after ", before,
                                   "; splits must rise from 0 to the ", count, " ids.");
  }
};

// The batch of a feature, as it was enqueued. The arrays may be on a GPU.
struct InputBatch {
  // Checks the shapes.
  //
  // Args:
  //   num_samples: the size of the first dimension of sparse or ragged ids.
  absl::Status Read(const InputFeature& feature, const Tensor& index_tensor,
                    const Tensor& ids_tensor, const Tensor& weights, int64_t num_samples) {
    constexpr int64_t kMost = InputFeature::kMost;
    const std::string& where = feature.where;
    count = ids_tensor.NumElements();
    ids = ids_tensor.flat<int64_t>().data();
    if (ids_tensor.dims() != 1) return errors::InvalidArgument(where, ": ids must have rank 1.");
    if (count > kMost) return errors::InvalidArgument(where, ": there are too many ids.");
    if (feature.weighted) {
      if (weights.NumElements() != count) {
        return errors::InvalidArgument(where, ": there must be one weight per id.");
      }
      weight = weights.flat<float>().data();
    }
    samples = num_samples;
    index = index_tensor.flat<int64_t>().data();
    const int64_t cells = feature.cells();
    if (feature.kind == InputFeature::kSparse) {
      if (index_tensor.dims() != 2 || index_tensor.dim_size(0) != count ||
          index_tensor.dim_size(1) < static_cast<int64_t>(feature.sizes.size())) {
        return errors::InvalidArgument(where, ": coordinates ",
                                       index_tensor.shape().DebugString(), " do not fit ", count,
                                       " ids.");
      }
      rank = index_tensor.dim_size(1);
    } else if (feature.kind == InputFeature::kRagged) {
      if (index_tensor.dims() != 1 || index_tensor.NumElements() < 1) {
        return errors::InvalidArgument(where, ": row splits must have rank 1 and not be empty.");
      }
      splits = index_tensor.NumElements();
    }
    // Dense ids fill their cells one by one, so their number must match exactly.
    const bool is_dense = feature.kind == InputFeature::kDense;
    if ((feature.check_samples || is_dense) && cells >= 0) {
      const int64_t planned = is_dense ? cells : feature.sizes[0];
      const int64_t samples_of_batch = is_dense ? count : samples;
      if (samples_of_batch != planned) {
        return errors::InvalidArgument(where, ": the engine is built for ", planned,
                                       " samples, but this batch has ", samples_of_batch);
      }
    }
    if (cells >= 0) {
      num_cells = cells;
    } else if (is_dense) {
      num_cells = count;
    } else {
      if (samples < 0 || samples > kMost / feature.per_sample) {
        return errors::InvalidArgument(where, ": a batch cannot have ", samples, " samples.");
      }
      num_cells = samples * feature.per_sample;
    }
    if (splits - 1 > num_cells / feature.per_row) {
      return errors::InvalidArgument(where, ": ", splits - 1, " ragged rows do not fit ",
                                     num_cells, " activations.");
    }
    return absl::OkStatus();
  }

  const int64_t* index = nullptr;
  int64_t rank = 0, splits = 0;
  const int64_t* ids = nullptr;
  const float* weight = nullptr;
  int64_t count = 0, num_cells = 0, samples = 0;
};

// Reads the features of one core.
class OccurrencesOp : public tensorflow::OpKernel {
 public:
  explicit OccurrencesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, InputFeature::ReadAll(context, "num_features", "rows", &features_));
    OP_REQUIRES_OK(context, GetAttributes(context, "drop", &drop_, "check_ids", &check_ids_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList index, ids, weights, samples;
    OP_REQUIRES_OK(context, GetLists(context, "index", &index, "ids", &ids, "weights", &weights,
                                     "num_samples", &samples));
    const int count = static_cast<int>(features_.size());
    std::vector<Work> work(count);
    // Tensors are allocated here, on one thread, with their largest possible size.
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES_OK(context, Prepare(context, i, features_[i], index[i], ids[i], weights[i],
                                      samples[i], &work[i]));
    }
    int64_t total = 0;
    for (const Work& w : work) total += w.count;
    OP_REQUIRES_OK(context, TryInParallel(context, count, total, [&](int64_t i) {
      return Run(features_[i], &work[i]);
    }));
    for (int i = 0; i < count; ++i) {
      Work& w = work[i];
      const bool shorter = w.kept < w.count;
      context->set_output(i, shorter ? w.kept_ids.Slice(0, w.kept) : ids[i]);
      context->set_output(count + i, shorter && w.has_cell ? w.cell.Slice(0, w.kept) : w.cell);
      const bool of_ids = w.has_gain && !features_[i].by_splits();
      context->set_output(2 * count + i, shorter && of_ids ? w.gain.Slice(0, w.kept) : w.gain);
      Tensor* cells;
      OP_REQUIRES_OK(context, context->allocate_output(3 * count + i, {}, &cells));
      cells->scalar<int64_t>()() = w.num_cells;
    }
  }

 private:
  using Feature = InputFeature;

  struct Work : InputBatch {
    int64_t kept = 0;
    bool has_cell = false, has_gain = false;
    Tensor kept_ids, cell, gain, sums;
  };

  absl::Status Prepare(OpKernelContext* context, size_t i, const Feature& feature,
                       const Tensor& index, const Tensor& ids, const Tensor& weights,
                       const Tensor& samples, Work* w) {
    const std::string& where = feature.where;
    if (samples.NumElements() != 1) {
      return errors::InvalidArgument(where, ": num_samples must be one number.");
    }
    TF_RETURN_IF_ERROR(w->Read(feature, index, ids, weights, samples.flat<int64_t>()(0)));
    w->kept = w->count;
    w->has_cell = !feature.by_splits() && (feature.kind != Feature::kDense || drop_);
    w->has_gain = feature.has_gains();
    using tensorflow::DT_FLOAT;
    using tensorflow::DT_INT64;
    const int64_t n = w->count, cell_size = w->has_cell ? n : 0;
    const int64_t gain_size = !w->has_gain ? 0 : feature.by_splits() ? w->splits - 1 : n;
    if (!feature.by_splits()) {
      TF_RETURN_IF_ERROR(kept_.Get(context, 3 * i, DT_INT64, {cell_size}, &w->cell));
    } else if (drop_) {
      TF_RETURN_IF_ERROR(kept_.Get(context, 3 * i, DT_INT64, {1, w->splits}, &w->cell));
    } else if (!w->cell.CopyFrom(index, {1, w->splits})) {
      return errors::Internal(where, ": row splits cannot be given another shape.");
    }
    TF_RETURN_IF_ERROR(kept_.Get(context, 3 * i + 1, DT_FLOAT, {gain_size}, &w->gain));
    if (feature.cuts() || drop_) {
      TF_RETURN_IF_ERROR(kept_.Get(context, 3 * i + 2, DT_INT64, {n}, &w->kept_ids));
    }
    if (w->has_gain && feature.combiner != Combiner::kSum && !feature.by_splits()) {
      TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, {w->num_cells}, &w->sums));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Feature& feature, Work* w) const {
    if (feature.kind == Feature::kSparse) TF_RETURN_IF_ERROR(SparseCells(feature, w));
    if (feature.kind == Feature::kRagged) TF_RETURN_IF_ERROR(RaggedCells(feature, w));
    if (feature.kind == Feature::kDense && w->has_cell) {
      int64_t* cell = w->cell.flat<int64_t>().data();
      for (int64_t i = 0; i < w->count; ++i) cell[i] = i;
    }
    const int64_t* ids = w->ids;
    const float* weight = w->weight;
    const bool drops = drop_ && !AllBelow(ids, w->count, feature.rows);
    if (drops && feature.by_splits()) {
      KeepBySplits(feature, w);
      ids = w->kept_ids.flat<int64_t>().data();
    } else if (feature.cuts() || drops) {
      Keep(feature, w);
      ids = w->kept_ids.flat<int64_t>().data();
      if (w->has_gain && weight != nullptr) weight = w->gain.flat<float>().data();
    }
    if (check_ids_ && !drop_) TF_RETURN_IF_ERROR(CheckIds(ids, w->kept, feature.rows, feature.where));
    if (!drops && drop_ && feature.by_splits()) {
      std::copy(w->index, w->index + w->splits, w->cell.flat<int64_t>().data());
    }
    if (w->has_gain && feature.by_splits()) {
      GainsBySplits(feature, w);
    } else if (w->has_gain) {
      Gains(feature, weight, w);
    }
    return absl::OkStatus();
  }

  // Sets the cell of every occurrence, or -1 if it is cut.
  static absl::Status SparseCells(const Feature& feature, Work* w) {
    int64_t* cells = w->cell.flat<int64_t>().data();
    const int64_t axes = static_cast<int64_t>(feature.sizes.size());
    for (int64_t i = 0; i < w->count; ++i) {
      const int64_t* at = w->index + i * w->rank;
      int64_t cell = 0;
      bool cut = false;
      for (int64_t axis = 0; axis < axes; ++axis) {
        const bool open = feature.sizes[axis] < 0;
        const int64_t size = open ? w->samples : feature.sizes[axis];
        if (at[axis] < 0 || at[axis] >= size) {
          if (axis == 1 && feature.sequence && at[axis] >= 0) {
            cut = true;
            continue;
          }
          return feature.OutsideSizes(axis, at[axis]);
        }
        cell = cell * size + at[axis];
      }
      cells[i] = cut ? -1 : cell;
    }
    return absl::OkStatus();
  }

  // Checks row splits, and sets the cell of every occurrence that the splits do not imply, or -1 if
  // it is cut.
  static absl::Status RaggedCells(const Feature& feature, Work* w) {
    const int64_t rows = w->splits - 1, per_row = feature.per_row;
    int64_t before = 0;
    for (int64_t row = 0; row <= rows; ++row) {
      const int64_t split = w->index[row];
      const bool fits = split >= before && split <= w->count;
      if ((row == 0 && split != 0) || !fits || (row == rows && split != w->count)) {
        return feature.BadSplit(row, rows, split, before, w->count);
      }
      before = split;
    }
    if (!w->has_cell) return absl::OkStatus();
    int64_t* cells = w->cell.flat<int64_t>().data();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t begin = w->index[row];
      for (int64_t i = begin; i < w->index[row + 1]; ++i) {
        const int64_t at = i - begin;
        cells[i] = per_row == 1 ? row : at < per_row ? row * per_row + at : -1;
      }
    }
    return absl::OkStatus();
  }

  // Moves the kept occurrences to the front, and weights to the gains, if there are any.
  void Keep(const Feature& feature, Work* w) const {
    int64_t* cell = w->cell.flat<int64_t>().data();
    int64_t* ids = w->kept_ids.flat<int64_t>().data();
    float* gain = w->has_gain ? w->gain.flat<float>().data() : nullptr;
    int64_t kept = 0;
    for (int64_t i = 0; i < w->count; ++i) {
      if (cell[i] < 0 || (drop_ && static_cast<uint64_t>(w->ids[i]) >=
                                       static_cast<uint64_t>(feature.rows))) {
        continue;
      }
      ids[kept] = w->ids[i];
      cell[kept] = cell[i];
      if (gain != nullptr && w->weight != nullptr) gain[kept] = w->weight[i];
      ++kept;
    }
    w->kept = kept;
  }

  // The same as `Keep` for ids in order of their cells. Also computes the splits of the kept
  // occurrences.
  static void KeepBySplits(const Feature& feature, Work* w) {
    int64_t* splits = w->cell.flat<int64_t>().data();
    int64_t* ids = w->kept_ids.flat<int64_t>().data();
    int64_t kept = 0;
    splits[0] = 0;
    for (int64_t row = 0; row + 1 < w->splits; ++row) {
      for (int64_t i = w->index[row]; i < w->index[row + 1]; ++i) {
        const int64_t id = w->ids[i];
        if (static_cast<uint64_t>(id) < static_cast<uint64_t>(feature.rows)) ids[kept++] = id;
      }
      splits[row + 1] = kept;
    }
    w->kept = kept;
  }

  // Sets the gain of each cell, which all of its ids share.
  static void GainsBySplits(const Feature& feature, Work* w) {
    // From this sum of ones on, adding 1 does not change the sum.
    constexpr int64_t kMostOnes = int64_t{1} << 24;
    const int64_t* splits = w->cell.flat<int64_t>().data();
    float* gain = w->gain.flat<float>().data();
    for (int64_t row = 0; row + 1 < w->splits; ++row) {
      const int64_t ones = std::min(splits[row + 1] - splits[row], kMostOnes);
      gain[row] = GainScale(feature.combiner, static_cast<float>(ones));
    }
  }

  static void Gains(const Feature& feature, const float* weight, Work* w) {
    float* gain = w->gain.flat<float>().data();
    const int64_t* cell = w->has_cell ? w->cell.flat<int64_t>().data() : nullptr;
    if (feature.combiner == Combiner::kSum || cell == nullptr) {
      if (gain != weight) std::copy(weight, weight + w->kept, gain);
      return;
    }
    float* sums = w->sums.flat<float>().data();
    std::fill(sums, sums + w->num_cells, 0.0f);
    for (int64_t i = 0; i < w->kept; ++i) {
      sums[cell[i]] += GainTerm(feature.combiner, weight == nullptr ? 1.0f : weight[i]);
    }
    for (int64_t i = 0; i < w->num_cells; ++i) sums[i] = GainScale(feature.combiner, sums[i]);
    for (int64_t i = 0; i < w->kept; ++i) {
      gain[i] = (weight == nullptr ? 1.0f : weight[i]) * sums[cell[i]];
    }
  }

  std::vector<Feature> features_;
  bool drop_ = false, check_ids_ = true;
  KeptTensors kept_;
};

}  // namespace estimator_bridge
