// A step with tables in parts on servers: a core requests rows and sends gradients, and servers
// answer and update. These are the kernels of backends/ps/native_ends.py.

#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "host/arguments.h"
#include "host/lookup_op.h"
#include "host/parts.h"
#include "host/rows.h"
#include "host/update_op.h"
#include "host/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

// The ranges of ids of one table: the first id of each range, and a number for each range.
struct Ranges {
  std::vector<int64_t> first, with;
};

// Reads the ranges of all tables. The attribute `with` has a number for each range.
inline absl::Status ReadRanges(OpKernelConstruction* context, const char* with,
                               std::vector<Ranges>* tables) {
  std::vector<int64_t> counts, firsts, numbers;
  TF_RETURN_IF_ERROR(GetAttributes(context, "range_counts", &counts, "firsts", &firsts));
  TF_RETURN_IF_ERROR(context->GetAttr(with, &numbers));
  size_t at = 0;
  for (const int64_t count : counts) {
    const size_t end = at + static_cast<size_t>(count);
    if (count < 1 || end > firsts.size() || end > numbers.size()) {
      return errors::InvalidArgument("Table ", tables->size(), " lacks ranges.");
    }
    tables->push_back({{firsts.begin() + at, firsts.begin() + end},
                       {numbers.begin() + at, numbers.begin() + end}});
    at = end;
  }
  return at == firsts.size() && at == numbers.size()
             ? absl::OkStatus()
             : errors::InvalidArgument("Some ranges belong to no table.");
}

// Reads the attributes that describe the routes of tables. The number of a range is its server.
inline absl::Status ReadRoutes(OpKernelConstruction* context, int64_t num_servers,
                               std::vector<TableRoute>* routes) {
  std::vector<Ranges> ranges;
  std::vector<bool> in_turns;
  TF_RETURN_IF_ERROR(ReadRanges(context, "servers", &ranges));
  TF_RETURN_IF_ERROR(context->GetAttr("in_turns", &in_turns));
  for (size_t table = 0; table < ranges.size(); ++table) {
    Ranges& one = ranges[table];
    if (in_turns.size() != ranges.size() || one.first[0] != 0 ||
        !AllBelow(one.with.data(), one.with.size(), num_servers)) {
      return errors::InvalidArgument("The ranges of table ", table, " do not assign all rows to ",
                                     num_servers, " servers.");
    }
    routes->push_back({std::move(one.first), std::move(one.with), in_turns[table]});
  }
  return absl::OkStatus();
}

// Reads the attributes that describe the parts of tables on a server. The number of a range is the
// row of its first id in the part.
inline absl::Status ReadParts(OpKernelConstruction* context, std::vector<TablePart>* parts) {
  std::vector<Ranges> ranges;
  std::vector<int64_t> rows, steps;
  TF_RETURN_IF_ERROR(ReadRanges(context, "starts", &ranges));
  TF_RETURN_IF_ERROR(GetAttributes(context, "rows", &rows, "steps", &steps));
  for (size_t table = 0; table < ranges.size(); ++table) {
    Ranges& one = ranges[table];
    if (rows.size() != ranges.size() || steps.size() != ranges.size() || steps[table] < 1 ||
        one.with[0] != 0) {
      return errors::InvalidArgument("The ranges of table ", table, " do not hold its rows.");
    }
    parts->push_back({std::move(one.first), std::move(one.with), rows[table], steps[table]});
  }
  return absl::OkStatus();
}

// The table of each piece, and the name of each piece in messages.
struct Pieces {
  std::vector<int64_t> table_of;
  std::vector<std::string> where;
  std::vector<std::vector<int>> of_table;

  absl::Status Read(OpKernelConstruction* context, size_t num_tables) {
    int count;
    TF_RETURN_IF_ERROR(GetAttributes(context, "num_pieces", &count, "table_of", &table_of,
                                     "where", &where));
    const size_t pieces = static_cast<size_t>(count);
    if (table_of.size() != pieces || where.size() != pieces ||
        !AllBelow(table_of.data(), count, static_cast<int64_t>(num_tables))) {
      return errors::InvalidArgument("table_of and where must have one entry per piece.");
    }
    of_table.resize(num_tables);
    for (int i = 0; i < count; ++i) of_table[table_of[i]].push_back(i);
    return absl::OkStatus();
  }
};

// Base class of the ops that divide the ids or gradients of a core's pieces among servers.
class RoutingOp : public tensorflow::OpKernel {
 public:
  explicit RoutingOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetAttributes(context, "num_servers", &num_servers_, "rows", &rows_));
    OP_REQUIRES_OK(context, ReadRoutes(context, num_servers_, &routes_));
    OP_REQUIRES_OK(context, pieces_.Read(context, rows_.size()));
    OP_REQUIRES(context, routes_.size() == rows_.size(),
                errors::InvalidArgument("There must be a route for each table."));
  }

 protected:
  int64_t num_tables() const { return static_cast<int64_t>(rows_.size()); }
  // Whether a server has a part of a table.
  bool IsOn(int64_t table, int64_t server) const {
    const std::vector<int64_t>& servers = routes_[table].server;
    return std::find(servers.begin(), servers.end(), server) != servers.end();
  }

  int64_t num_servers_ = 0;
  std::vector<int64_t> rows_;
  std::vector<TableRoute> routes_;
  Pieces pieces_;
};

// Computes requests from ids: the rows to request from each server, each row once, and for each id
// the position of its row in the server's answer, in the form of `Placement::OfPositions`.
class RouteOp : public RoutingOp {
 public:
  explicit RouteOp(OpKernelConstruction* context) : RoutingOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tables_on", &tables_on_));
    OP_REQUIRES(context, tables_on_.size() == static_cast<size_t>(num_servers_),
                errors::InvalidArgument("tables_on must have one entry per server."));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList ids;
    OP_REQUIRES_OK(context, context->input_list("ids", &ids));
    tensorflow::OpOutputList positions, requests;
    OP_REQUIRES_OK(context, GetLists(context, "positions", &positions, "requests", &requests));
    std::vector<int64_t*> into(ids.size());
    int64_t total = 0;
    for (int i = 0; i < ids.size(); ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, positions.allocate(i, {ids[i].NumElements()}, &output));
      into[i] = output->flat<int64_t>().data();
      total += ids[i].NumElements();
    }
    std::vector<std::vector<std::vector<int64_t>>> wanted(rows_.size());  // by table and server
    OP_REQUIRES_OK(context, TryInParallel(context, num_tables(), total, [&](int64_t table) {
      wanted[table].resize(num_servers_);
      return Route(table, ids, into, &wanted[table]);
    }));
    for (int64_t server = 0; server < num_servers_; ++server) {
      const int64_t header = Request::Header(tables_on_[server]);
      int64_t size = header;
      for (const auto& of_table : wanted) size += static_cast<int64_t>(of_table[server].size());
      Tensor* output;
      OP_REQUIRES_OK(context, requests.allocate(static_cast<int>(server), {size}, &output));
      int64_t* counts = output->flat<int64_t>().data();
      int64_t* at = counts + header;
      for (int64_t table = 0; table < num_tables(); ++table) {
        if (!IsOn(table, server)) continue;
        const std::vector<int64_t>& rows = wanted[table][server];
        if (header > 0) *counts++ = static_cast<int64_t>(rows.size());
        at = std::copy(rows.begin(), rows.end(), at);
      }
    }
  }

 private:
  absl::Status Route(int64_t table, const tensorflow::OpInputList& ids,
                     const std::vector<int64_t*>& into,
                     std::vector<std::vector<int64_t>>* wanted) const {
    int64_t count = 0;
    for (const int i : pieces_.of_table[table]) count += ids[i].NumElements();
    Grouping order;
    order.Reset(rows_[table], count, count);
    if (!order.ok()) return errors::Unimplemented("There are too many ids in a batch: ", count);
    std::vector<int64_t*> position(static_cast<size_t>(count));
    int64_t next = 0;
    for (const int i : pieces_.of_table[table]) {
      const int64_t* of_piece = ids[i].flat<int64_t>().data();
      const int64_t size = ids[i].NumElements();
      TF_RETURN_IF_ERROR(CheckIds(of_piece, size, rows_[table], pieces_.where[i]));
      for (int64_t k = 0; k < size; ++k, ++next) {
        order.Set(next, of_piece[k], next);
        position[next] = into[i] + k;
      }
    }
    order.Sort();
    int64_t here = 0;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t id = order.id(k);
      if (k == 0 || id != order.id(k - 1)) {
        const int64_t server = routes_[table].Server(id);
        std::vector<int64_t>& rows = (*wanted)[server];
        here = Placement::Position(server, static_cast<int64_t>(rows.size()));
        rows.push_back(id);
      }
      *position[order.with(k)] = here;
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> tables_on_;
};

// Answers a request with rows of parameters, table by table.
class ServeOp : public tensorflow::OpKernel {
 public:
  explicit ServeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetAttributes(context, "num_tables", &num_tables_, "dims", &dims_));
    OP_REQUIRES_OK(context, ReadParts(context, &parts_));
    OP_REQUIRES(context,
                parts_.size() == static_cast<size_t>(num_tables_) && dims_.size() == parts_.size(),
                errors::InvalidArgument("There must be one variable per table."));
    for (int i = 0; i < num_tables_; ++i) shapes_.push_back({parts_[i].rows, dims_[i]});
  }

  void Compute(OpKernelContext* context) override {
    LockedVariables variables(LockedVariables::Access::kRead);
    std::vector<float*> data;
    OP_REQUIRES_OK(context, variables.Find(context, shapes_, &data));
    huge_.See(context, data, shapes_);
    const Tensor& message = context->input(num_tables_);
    Request request;
    OP_REQUIRES(context,
                request.Read(message.flat<int64_t>().data(), message.NumElements(), num_tables_),
                errors::InvalidArgument("A request for rows does not have the stated size."));
    std::vector<Task> tasks;
    int64_t size = 0, total = 0;
    for (int table = 0; table < num_tables_; ++table) {
      const int64_t count = request.count(table);
      for (int64_t begin = 0; begin < count; begin += kChunk) {
        tasks.push_back({table, begin, std::min(begin + kChunk, count), size + begin * dims_[table]});
      }
      size += count * dims_[table];
      total += count;
    }
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, {size}, &output));
    float* out = output->flat<float>().data();
    const int64_t num_tasks = static_cast<int64_t>(tasks.size());
    OP_REQUIRES_OK(context, TryInParallel(context, num_tasks, total, [&](int64_t t) -> absl::Status {
      const Task& task = tasks[t];
      const int64_t dim = dims_[task.table], count = task.end - task.begin;
      std::vector<int64_t> rows(static_cast<size_t>(count));
      const int64_t* ids = request.ids(task.table) + task.begin;
      const int64_t known = parts_[task.table].SetRows(ids, count, rows.data());
      if (known < count) {
        return errors::InvalidArgument("This server does not hold row ", ids[known], ".");
      }
      const float* from = data[task.table];
      for (int64_t i = 0; i < count; ++i) {
        if (i + kUpdateAhead < count) Prefetch<false>(from + rows[i + kUpdateAhead] * dim, dim);
        std::memcpy(out + task.out + i * dim, from + rows[i] * dim, dim * sizeof(float));
      }
      return absl::OkStatus();
    }));
  }

 private:
  static constexpr int64_t kChunk = 4096;
  // Rows of a request, and their place in the answer.
  struct Task {
    int table;
    int64_t begin, end, out;
  };

  int num_tables_ = 0;
  std::vector<int64_t> dims_;
  std::vector<TablePart> parts_;
  std::vector<VariableShape> shapes_;
  HugeTables huge_;
};

// Sums the rows of the servers' answers.
class CombineOp : public SumOp {
 public:
  explicit CombineOp(OpKernelConstruction* context) : SumOp(context) {
    std::vector<int64_t> holds;
    OP_REQUIRES_OK(context, context->GetAttr("holds", &holds));
    const size_t servers = static_cast<size_t>(num_shards_);
    OP_REQUIRES(context, holds.size() == dims_.size() * servers,
                errors::InvalidArgument("holds must have one entry per table and server."));
    tables_on_.resize(servers);
    for (size_t table = 0; table < dims_.size(); ++table) {
      placements_.push_back(Placement::OfPositions(num_shards_));
      for (size_t server = 0; server < servers; ++server) {
        if (holds[table * servers + server]) tables_on_[server].push_back(table);
      }
    }
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList requests, answers;
    OP_REQUIRES_OK(context, GetLists(context, "requests", &requests, "answers", &answers));
    std::vector<float*> shards(dims_.size() * num_shards_);
    std::vector<int64_t> counts(shards.size());
    for (int64_t server = 0; server < num_shards_; ++server) {
      const std::vector<size_t>& tables = tables_on_[server];
      const Tensor& request = requests[static_cast<int>(server)];
      const Tensor& answer = answers[static_cast<int>(server)];
      Request wanted;
      bool fits = wanted.Read(request.flat<int64_t>().data(), request.NumElements(),
                              static_cast<int64_t>(tables.size()));
      const float* at = answer.flat<float>().data();
      int64_t left = answer.NumElements();
      for (size_t i = 0; fits && i < tables.size(); ++i) {
        const size_t number = tables[i] * num_shards_ + server;
        shards[number] = const_cast<float*>(at);
        counts[number] = wanted.count(static_cast<int64_t>(i));
        at += counts[number] * dims_[tables[i]];
        left -= counts[number] * dims_[tables[i]];
      }
      OP_REQUIRES(context, fits && left == 0,
                  errors::InvalidArgument("A server's answer does not have the requested rows."));
    }
    Sum(context, shards, counts, placements_,
        [&](int64_t table, const int64_t* ids, int64_t count, const std::string& where) {
          return CheckPositions(table, ids, count, counts, where);
        });
  }

 private:
  absl::Status CheckPositions(int64_t table, const int64_t* positions, int64_t count,
                              const std::vector<int64_t>& counts, const std::string& where) const {
    bool outside = false;
    for (int64_t i = 0; i < count; ++i) {
      int64_t server, row;
      placements_[table].Find(positions[i], &server, &row);
      outside |= positions[i] < 0 || server >= num_shards_ ||
                 row >= counts[table * num_shards_ + server];
    }
    return outside ? errors::InvalidArgument(where, ": a position is beyond the requested rows.")
                   : absl::OkStatus();
  }

  std::vector<Placement> placements_;
  std::vector<std::vector<size_t>> tables_on_;  // by server
};

// Computes messages to servers from gradients, in one of the forms of messages.py.
class SendOp : public RoutingOp {
 public:
  explicit SendOp(OpKernelConstruction* context) : RoutingOp(context) {
    std::string wire;
    OP_REQUIRES_OK(context, GetAttributes(context, "dims", &dims_, "wire", &wire));
    OP_REQUIRES(context, dims_.size() == rows_.size(),
                errors::InvalidArgument("There must be a dim for each table."));
    wire_ = wire == "summed"  ? Wire::kSummed
            : wire == "cells" ? Wire::kCells
                              : (wire == "smallest" ? Wire::kSmallest : Wire::kOccurrences);
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList ids, cells, gains, gradients;
    OP_REQUIRES_OK(context, GetLists(context, "ids", &ids, "cells", &cells, "gains", &gains,
                                     "gradients", &gradients));
    std::vector<std::vector<Part>> parts(rows_.size());  // by table and server
    int64_t total = 0;
    for (int i = 0; i < ids.size(); ++i) total += ids[i].NumElements();
    OP_REQUIRES_OK(context, TryInParallel(context, num_tables(), total, [&](int64_t table) {
      parts[table].resize(num_servers_);
      return Divide(table, ids, cells, gains, gradients, &parts[table]);
    }));
    tensorflow::OpOutputList numbers, floats;
    OP_REQUIRES_OK(context, GetLists(context, "numbers", &numbers, "floats", &floats));
    std::vector<Task> tasks;
    for (int64_t server = 0; server < num_servers_; ++server) {
      std::vector<int64_t> tables;
      for (int64_t table = 0; table < num_tables(); ++table) {
        if (IsOn(table, server)) tables.push_back(table);
      }
      const int64_t header = GradientMessage::kHeader * static_cast<int64_t>(tables.size());
      int64_t num_numbers = header, num_floats = 0;
      for (const int64_t table : tables) {
        const Part& part = parts[table][server];
        num_numbers += part.NumNumbers();
        num_floats += part.NumFloats(dims_[table]);
      }
      Tensor *of_numbers, *of_floats;
      const int output = static_cast<int>(server);
      OP_REQUIRES_OK(context, numbers.allocate(output, {num_numbers}, &of_numbers));
      OP_REQUIRES_OK(context, floats.allocate(output, {num_floats}, &of_floats));
      int64_t* counts = of_numbers->flat<int64_t>().data();
      int64_t* at = counts + header;
      float* rows = of_floats->flat<float>().data();
      for (const int64_t table : tables) {
        const Part& part = parts[table][server];
        *counts++ = part.count();
        *counts++ = part.has_cells ? static_cast<int64_t>(part.distinct.size()) : 0;
        tasks.push_back({&part, dims_[table], at, rows});
        at += part.NumNumbers();
        rows += part.NumFloats(dims_[table]);
      }
    }
    InParallel(context, static_cast<int64_t>(tasks.size()), total,
               [&](int64_t i) { Write(tasks[i]); });
  }

 private:
  enum class Wire { kOccurrences, kCells, kSmallest, kSummed };

  // The data of one table for one server.
  struct Part {
    std::vector<int64_t> ids;
    std::vector<int64_t> cells;           // the ids' cells, as indices in the table or `distinct`
    std::vector<const float*> gradients;  // the gradient of each id, or of each `distinct` cell
    std::vector<float> gains;
    std::vector<int64_t> distinct;  // the table's cells with ids here, in order of their first id
    bool has_cells = false;
    bool is_summed = false;
    std::vector<int64_t> begins;  // is_summed: where the ids of each row begin in `order`
    std::vector<int64_t> order;   // is_summed: the ids, grouped by row

    int64_t count() const {
      return static_cast<int64_t>(is_summed ? begins.size() : ids.size());
    }
    int64_t NumNumbers() const { return (has_cells ? 2 : 1) * count(); }
    int64_t NumFloats(int64_t dim) const {
      if (!has_cells) return count() * dim;
      return count() + static_cast<int64_t>(distinct.size()) * dim;
    }
  };
  struct Task {
    const Part* part;
    int64_t dim;
    int64_t* numbers;
    float* floats;
  };

  absl::Status Divide(int64_t table, const tensorflow::OpInputList& ids,
                      const tensorflow::OpInputList& cells, const tensorflow::OpInputList& gains,
                      const tensorflow::OpInputList& gradients, std::vector<Part>* parts) const {
    const int64_t dim = dims_[table];
    const TableRoute& route = routes_[table];
    int64_t first_cell = 0;
    for (const int i : pieces_.of_table[table]) {
      const std::string& where = pieces_.where[i];
      Occurrences piece;
      TF_RETURN_IF_ERROR(piece.Read(ids[i], cells[i], gains[i], where));
      const int64_t num_cells = gradients[i].NumElements() / dim;
      if (gradients[i].NumElements() % dim != 0) {
        return errors::InvalidArgument(where, ": a gradient of shape ",
                                       gradients[i].shape().DebugString(),
                                       " cannot be divided into rows with ", dim, " columns.");
      }
      TF_RETURN_IF_ERROR(CheckIds(piece.ids, piece.count, rows_[table], where));
      TF_RETURN_IF_ERROR(piece.CheckNumCells(num_cells, where));
      TF_RETURN_IF_ERROR(piece.CheckCells(0, piece.count, 0, num_cells, where));
      const float* rows = gradients[i].flat<float>().data();
      const auto add = [&](int64_t k, int64_t cell) {
        Part& part = (*parts)[route.Server(piece.ids[k])];
        part.ids.push_back(piece.ids[k]);
        part.cells.push_back(first_cell + cell);
        part.gradients.push_back(rows + cell * dim);
        part.gains.push_back(piece.gains == GainsOf::kNone  ? 1.0f
                             : piece.gains == GainsOf::kIds ? piece.gain[k]
                                                            : piece.gain[cell]);
      };
      if (piece.splits != nullptr) {
        for (int64_t cell = 0; cell < piece.num_cells(); ++cell) {
          for (int64_t k = piece.splits[cell]; k < piece.splits[cell + 1]; ++k) add(k, cell);
        }
      } else {
        for (int64_t k = 0; k < piece.count; ++k) add(k, piece.cell == nullptr ? k : piece.cell[k]);
      }
      first_cell += num_cells;
    }
    if (wire_ == Wire::kOccurrences) return absl::OkStatus();
    std::vector<int64_t> seen_by(wire_ == Wire::kSummed ? 0 : first_cell, -1), number(seen_by);
    for (int64_t server = 0; server < num_servers_; ++server) {
      Part& part = (*parts)[server];
      if (part.ids.empty()) continue;
      if (wire_ == Wire::kSummed) {
        TF_RETURN_IF_ERROR(GroupByRow(rows_[table], &part));
      } else {
        NumberCells(server, dim, &seen_by, &number, &part);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status GroupByRow(int64_t rows, Part* part) {
    const int64_t count = static_cast<int64_t>(part->ids.size());
    Grouping order;
    order.Reset(rows, count, count);
    if (!order.ok()) return errors::Unimplemented("There are too many ids in a batch: ", count);
    for (int64_t k = 0; k < count; ++k) order.Set(k, part->ids[k], k);
    order.Sort();
    for (int64_t k = 0; k < count; ++k) {
      if (k == 0 || order.id(k) != order.id(k - 1)) part->begins.push_back(k);
      part->order.push_back(order.with(k));
    }
    part->is_summed = true;
    return absl::OkStatus();
  }

  // Assigns indices to the cells of the part, if the form "cells" is used.
  void NumberCells(int64_t server, int64_t dim, std::vector<int64_t>* seen_by,
                   std::vector<int64_t>* number, Part* part) const {
    std::vector<const float*> gradients;
    std::vector<int64_t> cells;
    for (size_t k = 0; k < part->ids.size(); ++k) {
      const int64_t cell = part->cells[k];
      if ((*seen_by)[cell] != server) {
        (*seen_by)[cell] = server;
        (*number)[cell] = static_cast<int64_t>(part->distinct.size());
        part->distinct.push_back(cell);
        gradients.push_back(part->gradients[k]);
      }
      cells.push_back((*number)[cell]);
    }
    const int64_t count = static_cast<int64_t>(part->ids.size());
    const int64_t distinct = static_cast<int64_t>(part->distinct.size());
    constexpr int64_t kFloat = 4, kMore = 12;  // bytes; kMore is for the cell and gain of an id
    part->has_cells =
        wire_ == Wire::kCells || kFloat * dim * distinct + kMore * count < kFloat * dim * count;
    if (!part->has_cells) return;
    part->cells = std::move(cells);
    part->gradients = std::move(gradients);
  }

  static void Write(const Task& task) {
    const Part& part = *task.part;
    const int64_t dim = task.dim, count = part.count();
    float* out = task.floats;
    if (part.is_summed) {
      for (int64_t k = 0; k < count; ++k, out += dim) {
        const size_t end = k + 1 < count ? part.begins[k + 1] : part.order.size();
        task.numbers[k] = part.ids[part.order[part.begins[k]]];
        std::fill(out, out + dim, 0.0f);
        for (size_t i = part.begins[k]; i < end; ++i) {
          const int64_t at = part.order[i];
          for (int64_t j = 0; j < dim; ++j) out[j] += part.gains[at] * part.gradients[at][j];
        }
      }
      return;
    }
    std::copy(part.ids.begin(), part.ids.end(), task.numbers);
    if (!part.has_cells) {
      for (int64_t k = 0; k < count; ++k, out += dim) {
        const float gain = part.gains[k];
        for (int64_t j = 0; j < dim; ++j) out[j] = gain * part.gradients[k][j];
      }
      return;
    }
    std::copy(part.cells.begin(), part.cells.end(), task.numbers + count);
    out = std::copy(part.gains.begin(), part.gains.end(), out);
    for (const float* row : part.gradients) {
      std::memcpy(out, row, dim * sizeof(float));
      out += dim;
    }
  }

  Wire wire_ = Wire::kOccurrences;
  std::vector<int64_t> dims_;
};

// Applies the messages of the cores to some of the tables that have a part on this server.
class ReceiveOp : public TableUpdateOp {
 public:
  explicit ReceiveOp(OpKernelConstruction* context) : TableUpdateOp(context) {
    OP_REQUIRES_OK(context, GetAttributes(context, "sent_dims", &sent_dims_,
                                          "numbers_in_message", &number_of_, "names", &names_));
    OP_REQUIRES_OK(context, ReadParts(context, &parts_));
    const size_t tables = tables_.size();
    OP_REQUIRES(context,
                number_of_.size() == tables && names_.size() == tables && parts_.size() == tables &&
                    AllBelow(number_of_.data(), tables, sent_dims_.size()) && num_shards_ == 1,
                errors::InvalidArgument("There must be a part of each table that was sent."));
    for (size_t i = 0; i < tables; ++i) {
      OP_REQUIRES(context, sent_dims_[number_of_[i]] == tables_[i].dim,
                  errors::InvalidArgument("Table ", i, " was sent with another dim."));
      tables_[i].part = &parts_[i];
    }
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList numbers, floats;
    OP_REQUIRES_OK(context, GetLists(context, "numbers", &numbers, "floats", &floats));
    std::vector<Job> jobs(tables_.size());
    for (int core = 0; core < numbers.size(); ++core) {
      GradientMessage message;
      OP_REQUIRES(context,
                  message.Read(numbers[core].flat<int64_t>().data(), numbers[core].NumElements(),
                               floats[core].flat<float>().data(), floats[core].NumElements(),
                               sent_dims_),
                  errors::InvalidArgument("The gradients of core ", core,
                                          " do not have the stated size."));
      for (size_t t = 0; t < tables_.size(); ++t) {
        const TableGradients& of_table = message.table(number_of_[t]);
        FeatureGradients sent;
        sent.rows.resize(static_cast<size_t>(of_table.count));
        const int64_t known = parts_[t].SetRows(of_table.ids, of_table.count, sent.rows.data());
        OP_REQUIRES(context, known == of_table.count,
                    errors::InvalidArgument(names_[t], ": this server does not hold row ",
                                            of_table.ids[known], "."));
        sent.piece.ids = sent.rows.data();
        sent.piece.count = of_table.count;
        sent.piece.cell = of_table.cells;
        sent.piece.gain = of_table.gains;
        sent.piece.gains = of_table.gains == nullptr ? GainsOf::kNone : GainsOf::kIds;
        sent.gradient = of_table.rows;
        sent.num_cells = of_table.num_rows();
        sent.core = core;
        sent.where = &names_[t];
        jobs[t].Add(std::move(sent));
      }
    }
    Apply(context, &jobs);
  }

 private:
  std::vector<int64_t> sent_dims_, number_of_;
  std::vector<std::string> names_;
  std::vector<TablePart> parts_;
};

}  // namespace estimator_bridge
