// The fused ops of the host driver for CPUs, which backends/host/native_kernels.py calls.
//
// TensorFlow's ops do the rest: optimizers that update every row (Adam with lazy_adam=False),
// activations that are not the rows themselves (FrequencyEstimator with weighted=True), and tables
// on another device than a CPU.
//
// Names begin with the engine's, because TensorFlow 2.15 refuses ops that begin with "Estimator".

#include "host/lookup_op.h"
#include "host/occurrences_op.h"
#include "host/part_ops.h"
#include "host/update_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace estimator_bridge {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

// Sets the shapes of the activations, from `sizes`, `dims` and `table_of`.
absl::Status ActivationShapes(InferenceContext* c) {
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
}

absl::Status Vectors(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

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
// `drop` leaves ids out that are outside of the table; they are an error otherwise, unless
// `check_ids` leaves that to the ops which read or write rows, and check the ids then. `index` is
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
    .Attr("check_ids: bool = true")
    // The op only computes its outputs, but it must not be pruned: an id outside the table must
    // fail the step even if nobody uses the outputs.
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

// Looks up pieces; a piece is a feature on a core. `parameters` holds the shards, table by table.
// Per table: rows, dims. Per piece: table_of, sizes and where, as above.
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
    .SetShapeFn(ActivationShapes);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineLookup").Device(tensorflow::DEVICE_CPU), LookupOp);

// One step of several tables. `variables` holds, table by table, the shards of the parameters and
// of each slot. Per table: rows, dims, rates and optimizers (serialised OptimizationParameters,
// whose learning rate is ignored). Per piece, in order of cores: table_of, core_of and where.
// `arithmetic` says whose rules apply: "tpu" for the first generation, or "sparsecore".
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

// Tables in parts on servers; see parts.h for the messages. Routes and parts are attributes. Per
// table: range_counts, and in_turns or steps. Per range: firsts, and servers or starts. Servers are
// numbered among those that hold any rows.
//
// On a core, for its pieces: what it asks each server for, and where in the answers its rows will
// be. tables_on: how many tables each server has a part of.
REGISTER_OP("Tf2EngineRoute")
    .Input("ids: num_pieces * int64")
    .Output("positions: num_pieces * int64")
    .Output("requests: num_servers * int64")
    .Attr("num_pieces: int >= 1")
    .Attr("num_servers: int >= 1")
    .Attr("rows: list(int)")
    .Attr("tables_on: list(int)")
    .Attr("range_counts: list(int)")
    .Attr("firsts: list(int)")
    .Attr("servers: list(int)")
    .Attr("in_turns: list(bool)")
    .Attr("table_of: list(int)")
    .Attr("where: list(string)")
    .SetShapeFn(Vectors);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineRoute").Device(tensorflow::DEVICE_CPU), RouteOp);

// On a server: the rows of parameters that a core has asked for.
REGISTER_OP("Tf2EngineServe")
    .Input("parameters: num_tables * resource")
    .Input("request: int64")
    .Output("answer: float")
    .Attr("num_tables: int >= 1")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("range_counts: list(int)")
    .Attr("firsts: list(int)")
    .Attr("starts: list(int)")
    .Attr("steps: list(int)")
    .SetIsStateful()
    .SetShapeFn(Vectors);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineServe").Device(tensorflow::DEVICE_CPU), ServeOp);

// On a core: the activations, from the answers. `ids` are positions from Tf2EngineRoute, num_shards
// counts servers, and `holds` says table by table which of them have a part.
REGISTER_OP("Tf2EngineCombine")
    .Input("requests: num_shards * int64")
    .Input("answers: num_shards * float")
    .Input("ids: num_pieces * int64")
    .Input("cells: num_pieces * int64")
    .Input("gains: num_pieces * float")
    .Input("num_cells: num_pieces * int64")
    .Output("activations: num_pieces * float")
    .Attr("num_pieces: int >= 1")
    .Attr("num_shards: int >= 1")
    .Attr("holds: list(int)")
    .Attr("dims: list(int)")
    .Attr("table_of: list(int)")
    .Attr("sizes: list(shape)")
    .Attr("where: list(string)")
    .SetShapeFn(ActivationShapes);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineCombine").Device(tensorflow::DEVICE_CPU), CombineOp);

// On a core: the gradients of its pieces, as messages to the servers.
REGISTER_OP("Tf2EngineSend")
    .Input("ids: num_pieces * int64")
    .Input("cells: num_pieces * int64")
    .Input("gains: num_pieces * float")
    .Input("gradients: num_pieces * float")
    .Output("numbers: num_servers * int64")
    .Output("floats: num_servers * float")
    .Attr("num_pieces: int >= 1")
    .Attr("num_servers: int >= 1")
    .Attr("wire: {'occurrences', 'cells', 'smallest', 'summed'}")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("range_counts: list(int)")
    .Attr("firsts: list(int)")
    .Attr("servers: list(int)")
    .Attr("in_turns: list(bool)")
    .Attr("table_of: list(int)")
    .Attr("where: list(string)")
    .SetShapeFn(Vectors);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineSend").Device(tensorflow::DEVICE_CPU), SendOp);

// On a server: a step of some of the tables whose gradients the cores sent. sent_dims: of all
// tables in the messages. numbers_in_message: which of them to update. The rest is as for
// Tf2EngineUpdate.
REGISTER_OP("Tf2EngineReceive")
    .Input("variables: num_variables * resource")
    .Input("numbers: num_cores * int64")
    .Input("floats: num_cores * float")
    .Input("rates: num_tables * float")
    .Attr("num_variables: int >= 1")
    .Attr("num_tables: int >= 1")
    .Attr("num_cores: int >= 1")
    .Attr("num_shards: int = 1")
    .Attr("strategy: {'div'} = 'div'")
    .Attr("arithmetic: {'tpu'} = 'tpu'")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("optimizers: list(string)")
    .Attr("sent_dims: list(int)")
    .Attr("numbers_in_message: list(int)")
    .Attr("names: list(string)")
    .Attr("range_counts: list(int)")
    .Attr("firsts: list(int)")
    .Attr("starts: list(int)")
    .Attr("steps: list(int)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineReceive").Device(tensorflow::DEVICE_CPU), ReceiveOp);

}  // namespace
}  // namespace estimator_bridge
