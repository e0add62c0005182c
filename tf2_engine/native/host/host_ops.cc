// The fused ops of the host driver, for CPUs, which backends/host/native_kernels.py calls.
//
// What they do not do runs on TensorFlow's ops: optimizers that update every row (Adam with
// lazy_adam=False), activations that are not the rows themselves (FrequencyEstimator with
// weighted=True), and tables on a device that is no CPU.
//
// Names begin with that of the engine because TensorFlow 2.15 refuses ops that begin with
// "Estimator".

#include "host/lookup_op.h"
#include "host/occurrences_op.h"
#include "host/update_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace estimator_bridge {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

// The features of one core, read. Per feature, as attributes:
//   kinds: "dense", "sparse" or "ragged".
//   combiners: "sum", "mean" or "sqrtn", of the table.
//   weighted: whether `weights` holds a number per id; else it is not looked at.
//   sequence: whether the second axis is one of positions, ids beyond which are cut.
//   check_samples: whether the batch must be found to have the planned size.
//   sizes: of the activation without `dim`; the first may be open.
//   rows: ids are below it.
//   per_row: ragged: activations of one row of the input.
//   where: how messages name the feature.
// `drop` leaves ids out that are outside of the table; they are an error otherwise. `index` is
// [num_ids, rank] for sparse, row splits for ragged, and not looked at for dense ids. A cell or
// gain that is empty stands for 0, 1, 2, ... or for ones. Ragged ids without weights, of which a row
// is a cell, have row splits in the place of cells, [1, rows + 1], and a gain for each row.
REGISTER_OP("Tf2EngineOccurrences")
    .Input("index: num_features * int64")
    .Input("ids: num_features * int64")
    .Input("weights: num_features * float")
    .Input("num_samples: num_features * int64")
    .Output("kept_ids: num_features * int64")
    .Output("cells: num_features * int64")
    .Output("gains: num_features * float")
    .Output("num_cells: num_features * int64")
    .Attr("num_features: int >= 1")
    .Attr("kinds: list(string)")
    .Attr("combiners: list(string)")
    .Attr("weighted: list(bool)")
    .Attr("sequence: list(bool)")
    .Attr("check_samples: list(bool)")
    .Attr("sizes: list(shape)")
    .Attr("rows: list(int)")
    .Attr("per_row: list(int)")
    .Attr("where: list(string)")
    .Attr("drop: bool")
    // It computes nothing but its outputs, yet an id outside must fail the step even if nobody
    // looks at them: it may not be pruned.
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int count;
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &count));
      for (int i = 0; i < 3 * count; ++i) {
        c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      }
      for (int i = count; i < 2 * count; ++i) c->set_output(i, c->UnknownShape());
      for (int i = 3 * count; i < 4 * count; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("Tf2EngineOccurrences").Device(tensorflow::DEVICE_CPU),
                        OccurrencesOp);

// Lookups of pieces: a feature on a core. `parameters` holds, table by table, the shards. Per
// table: rows, dims. Per piece: table_of, sizes and where, as above.
REGISTER_OP("Tf2EngineLookup")
    .Input("parameters: num_variables * resource")
    .Input("ids: num_pieces * int64")
    .Input("cells: num_pieces * int64")
    .Input("gains: num_pieces * float")
    .Input("num_cells: num_pieces * int64")
    .Output("activations: num_pieces * float")
    .Attr("num_variables: int >= 1")
    .Attr("num_pieces: int >= 1")
    .Attr("num_shards: int >= 1")
    .Attr("strategy: {'div', 'mod'}")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("table_of: list(int)")
    .Attr("sizes: list(shape)")
    .Attr("where: list(string)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tensorflow::PartialTensorShape> sizes;
      std::vector<int64_t> dims, table_of;
      TF_RETURN_IF_ERROR(c->GetAttr("sizes", &sizes));
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      TF_RETURN_IF_ERROR(c->GetAttr("table_of", &table_of));
      for (int i = 0; i < c->num_outputs(); ++i) {
        if (static_cast<size_t>(i) >= sizes.size() || static_cast<size_t>(i) >= table_of.size() ||
            table_of[i] < 0 || static_cast<size_t>(table_of[i]) >= dims.size()) {
          return errors::InvalidArgument("sizes, dims and table_of do not fit the pieces.");
        }
        tensorflow::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(sizes[i], &shape));
        TF_RETURN_IF_ERROR(c->Concatenate(shape, c->Vector(dims[table_of[i]]), &shape));
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("Tf2EngineLookup").Device(tensorflow::DEVICE_CPU), LookupOp);

// One step of several tables. `variables` holds, table by table, the shards of the parameters and
// of each slot. Per table: rows, dims, rates and optimizers, serialised OptimizationParameters of
// which the learning rate alone is not looked at. Per piece, in order of cores: table_of, core_of
// and where. `arithmetic` says whose rules: "tpu", those of the first generation, or "sparsecore".
REGISTER_OP("Tf2EngineUpdate")
    .Input("variables: num_variables * resource")
    .Input("ids: num_pieces * int64")
    .Input("cells: num_pieces * int64")
    .Input("gains: num_pieces * float")
    .Input("gradients: num_pieces * float")
    .Input("rates: num_tables * float")
    .Attr("num_variables: int >= 1")
    .Attr("num_pieces: int >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("num_shards: int >= 1")
    .Attr("num_cores: int >= 1")
    .Attr("strategy: {'div', 'mod'}")
    .Attr("arithmetic: {'tpu', 'sparsecore'} = 'tpu'")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("optimizers: list(string)")
    .Attr("table_of: list(int)")
    .Attr("core_of: list(int)")
    .Attr("where: list(string)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineUpdate").Device(tensorflow::DEVICE_CPU), UpdateOp);

}  // namespace
}  // namespace estimator_bridge
