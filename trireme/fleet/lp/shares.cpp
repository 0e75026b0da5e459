#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/lp/problem.h"

namespace trireme::fleet {

namespace {

// Where the columns and rows of a ShareProblem lie in its linear program.
struct Layout {
  explicit Layout(const ShareProblem& problem) : problem(problem) {
    const auto jobs = problem.jobs;
    for (size_t m = 0; m < jobs; ++m) program.add_row(problem.base[m] * problem.copies(m), LinearProgram::infinity);
    for (size_t m = 0; m < jobs; ++m) program.add_row(-LinearProgram::infinity, problem.copies(m));
    for (size_t j = 0; j < problem.types; ++j) program.add_row(-LinearProgram::infinity, problem.capacity[j]);
    add_columns();
  }

  int demand_row(size_t job) const { return static_cast<int>(job); }
  int time_row(size_t job) const { return static_cast<int>(problem.jobs + job); }
  int device_row(size_t type) const { return static_cast<int>(2 * problem.jobs + type); }
  int alone(size_t job, size_t type) const { return static_cast<int>(job * problem.types + type); }
  int paired(size_t pair, size_t type) const { return static_cast<int>((problem.jobs + pair) * problem.types + type); }

  void add_columns() {
    using Entry = LinearProgram::Entry;
    std::vector<Entry> entries;
    for (size_t m = 0; m < problem.jobs; ++m) {
      for (size_t j = 0; j < problem.types; ++j) {
        const double value = problem.value[m * problem.types + j];
        entries = {{demand_row(m), value}, {time_row(m), 1}, {device_row(j), problem.scale[m]}};
        program.add_column(0, value > 0 ? LinearProgram::infinity : 0, 0, entries);
      }
    }
    for (size_t c = 0; c < problem.pairs.size(); ++c) {
      const auto [first, second] = problem.pairs[c];
      for (size_t j = 0; j < problem.types; ++j) {
        const double one = problem.value_first[c * problem.types + j],
                     two = problem.value_second[c * problem.types + j];
        const double scale = problem.scale[first];
        if (first == second) {
          entries = {{demand_row(first), one + two}, {time_row(first), 2}, {device_row(j), scale}};
        } else {
          entries = {{demand_row(first), one},
                     {demand_row(second), two},
                     {time_row(first), 1},
                     {time_row(second), 1},
                     {device_row(j), scale}};
        }
        program.add_column(0, problem.pair_runs(c, j) ? LinearProgram::infinity : 0, 0, entries);
      }
    }
    if (!problem.raises_level) return;
    entries.clear();
    for (size_t m = 0; m < problem.jobs; ++m) {
      if (problem.gain[m] > 0) entries.push_back({demand_row(m), -problem.gain[m] * problem.copies(m)});
    }
    level = program.add_column(-LinearProgram::infinity, LinearProgram::infinity, -1, entries);
  }

  const ShareProblem& problem;
  LinearProgram program;
  int level = -1;
};

}  // namespace

// The basis that the last problem ended with: states by what their jobs are known by, so that they outlive jobs that
// come and go. A row that is new is slack; a column that is new stays at 0.
struct ClpShareSolver::Kept {
  using State = LinearProgram::State;
  std::unordered_map<uint64_t, State> columns, rows;

  static uint64_t mix(uint64_t a, uint64_t b) {
    return (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  }

  // Calls visit(table, key, place) for every column and row of a problem.
  template <class Visit>
  static void each(const ShareProblem& problem, const Layout& layout, Visit visit) {
    for (size_t m = 0; m < problem.jobs; ++m) {
      visit(false, mix(problem.key[m], 1000001), layout.demand_row(m));
      visit(false, mix(problem.key[m], 1000002), layout.time_row(m));
      for (size_t j = 0; j < problem.types; ++j) visit(true, mix(problem.key[m], j), layout.alone(m, j));
    }
    for (size_t c = 0; c < problem.pairs.size(); ++c) {
      const uint64_t both = mix(problem.key[problem.pairs[c].first], problem.key[problem.pairs[c].second]);
      for (size_t j = 0; j < problem.types; ++j) visit(true, mix(both, j), layout.paired(c, j));
    }
    for (size_t j = 0; j < problem.types; ++j) visit(false, mix(j, 1000003), layout.device_row(j));
    if (layout.level >= 0) visit(true, 1000004, layout.level);
  }

  void keep(const ShareProblem& problem, const Layout& layout) {
    columns.clear();
    rows.clear();
    const auto basis = layout.program.basis();
    each(problem, layout, [&](bool column, uint64_t key, int place) {
      (column ? columns : rows)[key] = (column ? basis.columns : basis.rows)[place];
    });
  }

  void hand_on(const ShareProblem& problem, Layout& layout) const {
    LinearProgram::Basis basis;
    basis.columns.assign((problem.jobs + problem.pairs.size()) * problem.types + (layout.level >= 0), State::lower);
    basis.rows.assign(2 * problem.jobs + problem.types, State::basic);
    each(problem, layout, [&](bool column, uint64_t key, int place) {
      const auto& table = column ? columns : rows;
      const auto at = table.find(key);
      if (at != table.end()) (column ? basis.columns : basis.rows)[place] = at->second;
    });
    layout.program.start_from(basis);
  }
};

ClpShareSolver::ClpShareSolver() : kept_(std::make_unique<Kept>()) {}
ClpShareSolver::~ClpShareSolver() = default;

ShareSolution ClpShareSolver::solve(const ShareProblem& problem) {
  ShareSolution solution;
  Layout layout(problem);
  auto& program = layout.program;
  const bool known = problem.key.size() == problem.jobs;
  if (known && !kept_->columns.empty()) kept_->hand_on(problem, layout);
  if (!program.minimize()) return solution;
  solution.feasible = true;
  solution.pressure.assign(problem.jobs, 0);
  if (layout.level >= 0) {
    solution.level = program.value(layout.level);
    for (size_t m = 0; m < problem.jobs; ++m) {
      const double price = program.row_price(layout.demand_row(m)) * problem.copies(m);
      if (price > 1e-9) solution.pressure[m] = price;
    }
    program.set_cost(layout.level, 0);
    program.close_worse();
  }
  if (known) kept_->keep(problem, layout);
  for (size_t i = 0; i < problem.costs.size(); ++i) {
    const auto& cost = problem.costs[i];
    for (size_t m = 0; m < problem.jobs * problem.types; ++m) program.set_cost(static_cast<int>(m), cost.alone[m]);
    for (size_t c = 0; c < problem.pairs.size() * problem.types; ++c) {
      program.set_cost(layout.paired(0, 0) + static_cast<int>(c), cost.paired[c]);
    }
    if (!program.minimize()) {
      solution.feasible = false;
      return solution;
    }
    if (i + 1 < problem.costs.size()) program.close_worse();
  }
  solution.alone.resize(problem.jobs * problem.types);
  solution.paired.resize(problem.pairs.size() * problem.types);
  for (size_t i = 0; i < solution.alone.size(); ++i)
    solution.alone[i] = std::max(0.0, program.value(static_cast<int>(i)));
  for (size_t i = 0; i < solution.paired.size(); ++i) {
    solution.paired[i] = std::max(0.0, program.value(layout.paired(0, 0) + static_cast<int>(i)));
  }
  return solution;
}

}  // namespace trireme::fleet
