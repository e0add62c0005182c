// The fused ops of the host driver for CPUs, which backends/host/native_kernels.py calls.
//
// TensorFlow's ops are used for optimizers that update every row (Adam with lazy_adam=False), for
// activations that are computed from rows (FrequencyEstimator with weighted=True), and for tables
// that are not on a CPU.
//
// Op names begin with "Tf2Engine", because TensorFlow 2.15 refuses names that begin with
// "Estimator".

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

// Reads the features of one core. The attributes per feature:
//   kinds: "dense", "sparse" or "ragged".
//   combiners: the combiner of the table, "sum", "mean" or "sqrtn".
//   weighted: whether `weights` has a weight per id. If not, it is ignored.
//   sequence: whether the second axis has the positions of a sequence, which is cut to its size.
//   check_samples: whether to check that the batch has the planned size.
//   sizes: the shape of the activation without `dim`. The first size may be unknown.
//   rows: the number of rows of the table.
//   per_row: for ragged ids, the number of activations per row of the input.
//   where: the text by which messages name the feature.
// `drop` leaves out ids that are outside the table. Otherwise such ids are an error. If `check_ids`
// is true, this op reports the error; else the ops that read or write rows do.
//
// `index` is [num_ids, rank] for sparse ids, the row splits for ragged ids, and ignored for dense
// ids. Empty cells mean 0, 1, 2, ..., and empty gains mean ones. For ragged ids without weights, if
// each row is a cell, `cells` are row splits, [1, rows + 1], and there is one gain per row.
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

// Looks up pieces; a piece is a feature on a core. `parameters` are the shards, table by table.
// rows and dims are attributes per table. table_of, sizes and where are attributes per piece; sizes
// and where are as above.
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

// Updates several tables in one step. `variables` are, table by table, the shards of the parameters
// and of each slot. The attributes per table are rows, dims, rates and optimizers (serialised
// OptimizationParameters, whose learning rate is ignored). The attributes per piece, in order of
// cores, are table_of, core_of and where. `arithmetic` selects the rules: "tpu" for the first
// generation, or "sparsecore".
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

// These ops look up and update tables on a GPU if the batches are on the GPU, too; see
// gpu/ops.h. The inputs and attributes of the batch are those of Tf2EngineOccurrences; `limits` are
// the upper bounds of the ids. The other inputs and attributes are those of the ops above.
// `num_samples` is in host memory, and only used for sparse ids.
REGISTER_OP("Tf2EngineRawLookup")
    .Input("parameters: num_variables * resource")
    .Input("index: num_pieces * int64")
    .Input("ids: num_pieces * int64")
    .Input("weights: num_pieces * float")
    .Input("num_samples: num_pieces * int64")
    .Output("activations: num_pieces * float")
    .Attr("num_variables: int >= 1")
    .Attr("num_pieces: int >= 1")
    .Attr("num_shards: int >= 1")
    .Attr("strategy: {'div', 'mod'}")
    .Attr("rows: list(int)")
    .Attr("dims: list(int)")
    .Attr("table_of: list(int)")
    .Attr("kinds: list(string)")
    .Attr("combiners: list(string)")
    .Attr("weighted: list(bool)")
    .Attr("sequence: list(bool)")
    .Attr("check_samples: list(bool)")
    .Attr("sizes: list(shape)")
    .Attr("limits: list(int)")
    .Attr("per_row: list(int)")
    .Attr("where: list(string)")
    .Attr("drop: bool")
    .SetIsStateful()
    .SetShapeFn(ActivationShapes);
REGISTER_OP("Tf2EngineRawUpdate")
    .Input("variables: num_variables * resource")
    .Input("index: num_pieces * int64")
    .Input("ids: num_pieces * int64")
    .Input("weights: num_pieces * float")
    .Input("num_samples: num_pieces * int64")
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
    .Attr("kinds: list(string)")
    .Attr("combiners: list(string)")
    .Attr("weighted: list(bool)")
    .Attr("sequence: list(bool)")
    .Attr("check_samples: list(bool)")
    .Attr("sizes: list(shape)")
    .Attr("limits: list(int)")
    .Attr("per_row: list(int)")
    .Attr("where: list(string)")
    .Attr("drop: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
// Waits for the GPU, and raises the error of a batch that these ops could not use.
REGISTER_OP("Tf2EngineCheckBatches")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The following ops are for tables in parts on servers; see parts.h for the messages. Attributes
// describe routes and parts. Per table: range_counts, and in_turns (for routes) or steps (for
// parts). Per range: firsts, and servers or starts. Servers without rows are not numbered.
//
// On a core, for its pieces: computes the requests to each server, and the positions of the rows in
// the answers. tables_on: for each server, the number of tables that have a part on it.
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

// On a server: returns the rows of parameters that a core has requested.
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

// On a core: computes activations from the answers. `ids` are positions from Tf2EngineRoute, and
// num_shards is the number of servers. `holds` has, per table and server, 1 if the server has a
// part of the table, else 0.
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

// On a core: packs the gradients of its pieces into messages to the servers.
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

// On a server: updates some of the tables whose gradients the cores sent. sent_dims: the widths of
// all tables in the messages. numbers_in_message: the positions of the tables to update. The other
// attributes are those of Tf2EngineUpdate.
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
