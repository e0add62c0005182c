// Tables in parts on servers, and messages between a core and a server: plain C++17, no TensorFlow.
// The Python sides are placement.py and backends/ps/messages.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace estimator_bridge {

// The rows of one part of a table: ranges of ids `first`, `first` + `step`, ..., in ascending
// order. The rows of a range begin at `start`.
struct TablePart {
  std::vector<int64_t> first, start;
  int64_t rows = 0, step = 1;

  // The row of an id, or -1 if it is not in this part.
  int64_t Row(int64_t id) const {
    const size_t range = std::upper_bound(first.begin(), first.end(), id) - first.begin();
    if (range == 0 || (id - first[range - 1]) % step != 0) return -1;
    const int64_t row = (id - first[range - 1]) / step + start[range - 1];
    return row < (range < start.size() ? start[range] : rows) ? row : -1;
  }

  int64_t Id(int64_t row) const {
    const size_t range = std::upper_bound(start.begin(), start.end(), row) - start.begin() - 1;
    return first[range] + (row - start[range]) * step;
  }

  // Sets the rows of ids. Returns the position of the first id outside this part, or `count`.
  int64_t SetRows(const int64_t* ids, int64_t count, int64_t* into) const {
    for (int64_t i = 0; i < count; ++i) {
      into[i] = Row(ids[i]);
      if (into[i] < 0) return i;
    }
    return count;
  }
};

// Maps the ids of a table to servers: by ranges of ids in ascending order, or in turns.
struct TableRoute {
  std::vector<int64_t> first, server;
  bool in_turns = false;  // id i is on server[i % number of servers]

  int64_t Server(int64_t id) const {
    if (server.size() == 1) return server[0];
    if (in_turns) return server[static_cast<size_t>(id) % server.size()];
    return server[std::upper_bound(first.begin(), first.end(), id) - first.begin() - 1];
  }
};

// The ids of several tables in one vector: the number of ids of each table, then the ids. For a
// single table, only the ids.
class Request {
 public:
  // Reads a vector. Returns false if the numbers of ids do not fit its size.
  bool Read(const int64_t* data, int64_t size, int64_t num_tables) {
    const bool is_alone = num_tables == 1;
    const int64_t* at = data + (is_alone ? 0 : num_tables);
    int64_t left = size - (is_alone ? 0 : num_tables);
    ids_.clear();
    counts_.clear();
    for (int64_t table = 0; table < num_tables; ++table) {
      if (left < 0) return false;
      const int64_t count = is_alone ? size : data[table];
      if (count < 0 || count > left) return false;
      ids_.push_back(at);
      counts_.push_back(count);
      at += count;
      left -= count;
    }
    return left == 0;
  }
  static int64_t Header(int64_t num_tables) { return num_tables == 1 ? 0 : num_tables; }

  const int64_t* ids(int64_t table) const { return ids_[table]; }
  int64_t count(int64_t table) const { return counts_[table]; }

 private:
  std::vector<const int64_t*> ids_;
  std::vector<int64_t> counts_;
};

// Gradients of one table in a message: a row for each id, or, if there are cells, a row for each
// cell, with a cell and a gain for each id.
struct TableGradients {
  const int64_t* ids = nullptr;
  const int64_t* cells = nullptr;
  const float* gains = nullptr;
  const float* rows = nullptr;
  int64_t count = 0, num_cells = 0;

  int64_t num_rows() const { return cells == nullptr ? count : num_cells; }
};

// The gradients of several tables, in two vectors. The integers are, for each table, the number of
// ids and the number of cells (0 without cells), then for each table the ids and their cells. The
// floats are, for each table, the gains and the rows.
class GradientMessage {
 public:
  static constexpr int64_t kHeader = 2;  // integers for each table

  // Reads the vectors. Returns false if the numbers do not fit their sizes, or a cell is out of
  // range.
  bool Read(const int64_t* data, int64_t size, const float* floats, int64_t num_floats,
            const std::vector<int64_t>& dims) {
    const int64_t num_tables = static_cast<int64_t>(dims.size());
    int64_t left = size - kHeader * num_tables;
    if (left < 0) return false;
    const int64_t* at = data + kHeader * num_tables;
    tables_.resize(dims.size());
    for (int64_t table = 0; table < num_tables; ++table) {
      TableGradients& of_table = tables_[table];
      of_table = TableGradients();
      of_table.count = data[kHeader * table];
      of_table.num_cells = data[kHeader * table + 1];
      const bool has_cells = of_table.num_cells > 0;
      const int64_t numbers = has_cells ? 2 : 1, gains = has_cells ? of_table.count : 0;
      if (of_table.count < 0 || of_table.num_cells < 0 || of_table.count > left / numbers ||
          of_table.num_cells > num_floats) {
        return false;
      }
      const int64_t wanted = gains + (has_cells ? of_table.num_cells : of_table.count) * dims[table];
      if (wanted > num_floats) return false;
      of_table.ids = at;
      if (has_cells) {
        of_table.cells = at + of_table.count;
        of_table.gains = floats;
        for (int64_t i = 0; i < of_table.count; ++i) {
          if (of_table.cells[i] < 0 || of_table.cells[i] >= of_table.num_cells) return false;
        }
      }
      of_table.rows = floats + gains;
      at += numbers * of_table.count;
      left -= numbers * of_table.count;
      floats += wanted;
      num_floats -= wanted;
    }
    return left == 0 && num_floats == 0;
  }

  const TableGradients& table(int64_t number) const { return tables_[number]; }

 private:
  std::vector<TableGradients> tables_;
};

}  // namespace estimator_bridge
