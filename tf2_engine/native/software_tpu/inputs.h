// Reads the inputs of an enqueue op into a list of ids to look up. Checks every number; errors name
// the feature and the table.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "host/rows.h"
#include "software_tpu/config.h"

namespace software_tpu {

using estimator_bridge::Combiner;

// One id that is looked up for one cell. A cell is a position of the activation.
struct Lookup {
  int64_t cell;
  int64_t id;
  float gain;  // the weight times the scale of the combiner
};
using Lookups = std::vector<Lookup>;

enum class InputKind {
  kByRank,     // as EnqueueTPUEmbeddingArbitraryTensorBatch does
  kDense,      // no indices: id j belongs to cell j
  kRows,       // one row number per id
  kIndices,    // coordinates of each id
  kRowSplits,  // where the rows of a ragged tensor begin and end
};

// The tensors of one feature.
struct Input {
  InputKind kind;
  tensorflow::Tensor index;
  tensorflow::Tensor ids;
  tensorflow::Tensor weights;  // empty: all ones
  std::string combiner;        // "sum", "mean", "sqrtn"
  std::string op;              // the name of the enqueue op
};

// Reads an int32, int64, float32 or float64 tensor.
class Numbers {
 public:
  explicit Numbers(const tensorflow::Tensor& tensor)
      : count_(tensor.NumElements()), type_(tensor.dtype()), data_(tensor.data()) {}
  int64_t count() const { return count_; }
  int64_t Integer(int64_t i) const {
    return type_ == tensorflow::DT_INT32 ? static_cast<const int32_t*>(data_)[i]
                                         : static_cast<const int64_t*>(data_)[i];
  }
  float Real(int64_t i) const {
    return type_ == tensorflow::DT_DOUBLE
               ? static_cast<float>(static_cast<const double*>(data_)[i])
               : static_cast<const float*>(data_)[i];
  }

 private:
  int64_t count_;
  tensorflow::DataType type_;
  const void* data_;
};

// Reads the id of each entry, with its cell and gain.
class InputReader {
 public:
  InputReader(const TpuConfig& config, int feature)
      : feature_(config.features[feature]),
        table_(config.tables[feature_.table]),
        where_(Where(config, feature)) {}

  absl::Status Read(const Input& input, Lookups* lookups) {
    const Numbers ids(input.ids);
    const Numbers weights(input.weights);
    if (weights.count() != 0 && weights.count() != ids.count()) {
      return Wrong("has ", weights.count(), " weights for ", ids.count(), " ids");
    }
    Combiner combiner;
    if (!estimator_bridge::ReadCombiner(input.combiner, &combiner)) {
      return Wrong("has the combiner '", AsText(input.combiner),
                   "'; it must be sum, mean or sqrtn");
    }
    lookups->clear();
    lookups->reserve(ids.count());
    weighted_ = weights.count() != 0;
    absl::Status status = Cells(input, ids, weights, lookups);
    if (!status.ok()) return status;
    for (const Lookup& lookup : *lookups) {
      if (lookup.id < 0 || lookup.id >= table_.rows) {
        return Wrong("has the id ", lookup.id, " for cell ", lookup.cell, ", but the table has ",
                     table_.rows, " rows");
      }
    }
    if (combines_) Combine(combiner, lookups);
    return absl::OkStatus();
  }

 private:
  absl::Status Cells(const Input& input, const Numbers& ids, const Numbers& weights,
                     Lookups* lookups) {
    InputKind kind = input.kind;
    if (kind == InputKind::kByRank) {
      if (input.index.dims() == 2) {
        kind = InputKind::kIndices;
      } else if (input.index.dims() == 1) {
        kind = input.index.NumElements() == 0 ? InputKind::kDense : InputKind::kRowSplits;
      } else {
        return Wrong("has sample indices of rank ", input.index.dims(),
                     "; rank 1 means row splits or none, rank 2 means coordinates");
      }
    }
    switch (kind) {
      case InputKind::kRowSplits:
        return RowSplits(Numbers(input.index), ids, weights, lookups);
      case InputKind::kIndices:
        return Indices(input, ids, weights, lookups);
      case InputKind::kRows:
        return Rows(input, ids, weights, lookups);
      default:
        return Dense(ids, weights, lookups);
    }
  }

  absl::Status Dense(const Numbers& ids, const Numbers& weights, Lookups* lookups) {
    if (ids.count() != feature_.cells) {
      return Wrong("has ", ids.count(), " dense ids for ", feature_.cells, " cells");
    }
    for (int64_t i = 0; i < ids.count(); ++i) {
      lookups->push_back({i, ids.Integer(i), Weight(weights, i)});
    }
    return absl::OkStatus();
  }

  absl::Status Rows(const Input& input, const Numbers& ids, const Numbers& weights,
                    Lookups* lookups) {
    const Numbers rows(input.index);
    if (rows.count() == 0 && ids.count() == feature_.cells) return Dense(ids, weights, lookups);
    if (rows.count() != ids.count()) {
      return Wrong("has ", rows.count(), " sample indices for ", ids.count(), " ids");
    }
    for (int64_t i = 0; i < ids.count(); ++i) {
      const int64_t row = rows.Integer(i);
      if (row < 0 || row >= feature_.cells) {
        return Wrong("has the sample index ", row, ", but only ", feature_.cells, " samples");
      }
      if (i > 0 && row < rows.Integer(i - 1)) {
        return Unsorted(input.op, i, row, rows.Integer(i - 1));
      }
      lookups->push_back({row, ids.Integer(i), Weight(weights, i)});
    }
    return absl::OkStatus();
  }

  absl::Status Indices(const Input& input, const Numbers& ids, const Numbers& weights,
                       Lookups* lookups) {
    const tensorflow::Tensor& index = input.index;
    if (index.dims() != 2) return Wrong("has sample indices of rank ", index.dims());
    const int64_t axes = feature_.shape.size();
    const int64_t columns = index.dim_size(1);
    if (index.dim_size(0) != ids.count()) {
      return Wrong("has ", index.dim_size(0), " sample indices for ", ids.count(), " ids");
    }
    // The last column counts the ids of a cell, which are combined. An empty tensor may have any
    // number of columns.
    if (ids.count() == 0) return absl::OkStatus();
    if (columns != axes + 1) {
      return Wrong("has sample indices of ", columns, " columns for an activation of ", axes,
                   " axes; there must be one column more than axes");
    }
    const Numbers where(index);
    for (int64_t i = 0; i < ids.count(); ++i) {
      int64_t cell = 0;
      bool cut_off = false;
      for (int64_t axis = 0; axis < axes; ++axis) {
        const int64_t at = where.Integer(i * columns + axis);
        const int64_t size = feature_.shape[axis];
        // Ids beyond the length of a sequence are cut off.
        if (axis > 0 && axis == axes - 1 && at >= size) cut_off = true;
        if (at < 0 || (at >= size && !cut_off)) {
          return Wrong("has the index ", at, " along axis ", axis, " of size ", size);
        }
        cell = cell * size + at;
      }
      // The order of ids within a cell does not matter.
      for (int64_t axis = 0; axis < axes && i > 0; ++axis) {
        const int64_t step = where.Integer(i * columns + axis) -
                             where.Integer((i - 1) * columns + axis);
        if (step < 0) {
          return Unsorted(input.op, i, Coordinates(where, i * columns, axes),
                          Coordinates(where, (i - 1) * columns, axes));
        }
        if (step > 0) break;
      }
      if (!cut_off) lookups->push_back({cell, ids.Integer(i), Weight(weights, i)});
    }
    return absl::OkStatus();
  }

  absl::Status RowSplits(const Numbers& splits, const Numbers& ids, const Numbers& weights,
                         Lookups* lookups) {
    const int64_t rows = splits.count() - 1;
    if (rows < 1 || feature_.cells % rows != 0) {
      return Wrong("has ", rows, " ragged rows for ", feature_.cells,
                   " cells; the number of cells must be a multiple of the number of rows");
    }
    if (splits.Integer(0) != 0 || splits.Integer(rows) != ids.count()) {
      return Wrong("has row splits from ", splits.Integer(0), " to ", splits.Integer(rows),
                   " for ", ids.count(), " ids");
    }
    for (int64_t row = 0; row < rows; ++row) {
      if (splits.Integer(row) > splits.Integer(row + 1)) {
        return Wrong("has row splits that decrease after row ", row);
      }
    }
    // More cells than rows means that each row is a sequence, without weights or combiners.
    const int64_t length = feature_.cells / rows;
    combines_ = rows == feature_.cells;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = splits.Integer(row); i < splits.Integer(row + 1); ++i) {
        const int64_t position = i - splits.Integer(row);
        if (combines_) {
          lookups->push_back({row, ids.Integer(i), Weight(weights, i)});
        } else if (position < length) {
          lookups->push_back({row * length + position, ids.Integer(i), 1.0f});
        }
      }
    }
    return absl::OkStatus();
  }

  // A device requires ids in the order of their samples.
  template <typename Place>
  absl::Status Unsorted(const std::string& op, int64_t id, const Place& place,
                        const Place& before) const {
    return Wrong("has indices that are not sorted: id ", id, " belongs to sample ", place,
                 " but follows an id of sample ", before, "; ", op,
                 " takes ids in the order of their samples");
  }

  static std::string Coordinates(const Numbers& where, int64_t first, int64_t axes) {
    std::string text = absl::StrCat(where.Integer(first));
    for (int64_t axis = 1; axis < axes; ++axis) {
      absl::StrAppend(&text, ",", where.Integer(first + axis));
    }
    return text;
  }

  // Turns weights into gains. Cells with a denominator of zero, which is documented as invalid, get
  // zeros. The ids of a cell are adjacent, so no memory as large as the activation is needed.
  static void Combine(Combiner combiner, Lookups* lookups) {
    for (auto begin = lookups->begin(); begin != lookups->end();) {
      float sum = 0.0f;
      auto end = begin;
      for (; end != lookups->end() && end->cell == begin->cell; ++end) {
        sum += estimator_bridge::GainTerm(combiner, end->gain);
      }
      const float scale = estimator_bridge::GainScale(combiner, sum);
      for (; begin != end; ++begin) begin->gain *= scale;
    }
  }

  float Weight(const Numbers& weights, int64_t i) const {
    return weighted_ ? weights.Real(i) : 1.0f;
  }

  template <typename... Parts>
  absl::Status Wrong(const Parts&... parts) const {
    return Refuse(where_, " ", parts..., ".");
  }

  const FeatureConfig& feature_;
  const TableConfig& table_;
  const std::string where_;
  bool weighted_ = false;
  bool combines_ = true;
};

}  // namespace software_tpu
