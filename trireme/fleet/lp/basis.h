// The basis of a linear program in which every job has two rows of its own, its time and its demand, and only the
// device types couple the jobs:
//
//   Σ_j x_mj + idle_m = 1,   Σ_j a_mj x_mj − surplus_m = q_m,   Σ_m u_mj x_mj + slack_j − v = 0
//
// v is the factor by which the devices are stretched. Two columns of each job, its keys, are basic; the J further basic
// columns, the extras, make a J × J matrix that is inverted anew whenever it changes, so rounding errors do not pile
// up. (Generalized upper bounding, after Dantzig and Van Slyke, with two rows a block instead of one.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::fleet {

class BlockBasis {
 public:
  // Columns of a job: 0 … J − 1 the types, then these two.
  int idle() const { return static_cast<int>(types); }
  int surplus() const { return static_cast<int>(types) + 1; }

  size_t types = 0, jobs = 0;
  std::vector<double> value;     // [M × J]: a_mj, the largest of a job 1
  std::vector<double> usage;     // [M × J]: u_mj
  std::vector<double> demand;    // [M]: q_m ≤ 1
  std::vector<uint8_t> closed;   // [M × (J + 2)]: columns that must stay at 0
  std::vector<uint8_t> tight;    // [J]: types whose slack must stay at 0
  const double* cost = nullptr;  // [M × J], or nothing
  double stretch_cost = 0;       // of v
  double stretch_limit = std::numeric_limits<double>::infinity();
  double stretch_enough = -std::numeric_limits<double>::infinity();  // optimize() ends when v is that small
  std::vector<double> price;                                         // [J]

  void resize(size_t new_types, size_t new_jobs);

  // The keys of a job become its best answer to `price`; from those that it has where they still fit its demand.
  void respond(int job);
  // After respond(): how far the job's best column that is not a key is from being as good.
  double gap(int job) const;

  // The basis of these jobs' keys, v and the slacks.
  void begin(const std::vector<int>& active);
  // The basis of no demands at all: v is fixed at its limit.
  void begin_idle(const std::vector<int>& active);
  // The costs changed: values stay, prices follow.
  void reprice();

  // Simplex steps with columns of these jobs until none of them improves.
  void optimize(const std::vector<int>& candidates);
  // The jobs of `active` with a column that improves.
  std::vector<int> improvable(const std::vector<int>& active) const;
  // Closes every column that would make the present optimum worse.
  void close_worse(const std::vector<int>& active);

  double stretch() const;                                        // v
  bool at_limit() const { return stretched_to_limit_; }          // v is fixed at its limit
  double demand_price(int job) const;                            // what a little more demand of the job costs
  void shares(const std::vector<int>& active, double* x) const;  // [M × J]

  int64_t steps = 0;

 private:
  struct Keys {
    int16_t first = 0, second = 0;
  };
  struct Extra {
    int job = 0, column = 0;       // of the job, or of these two
    double first = 0, second = 0;  // the keys of its job that it stands for
  };
  static constexpr int slack_job = -1, stretch_job = -2;
  // The two keys of a job as a 2 × 2 matrix.
  struct Block {
    double time1, value1, time2, value2, scale;  // scale: 1 / determinant

    std::array<double, 2> solve(double time, double amount) const {
      return {(value2 * time - time2 * amount) * scale, (time1 * amount - value1 * time) * scale};
    }
  };
  // What must leave the basis: an extra, or a key of a job.
  struct Leaving {
    double bound = std::numeric_limits<double>::infinity();  // of the step, slackness included
    double rate = 0, step = 0;
    int extra = -1, job = -1, key = -1;
    bool found() const { return rate > 0; }
  };

  Block block(int job) const;
  double cost_of(int job, int column) const { return cost && column < idle() ? cost[job * types + column] : 0; }
  double charge(int job, int column) const;  // its cost and that of the devices it uses
  std::array<double, 2> row_prices(int job) const;
  int entering_of(int job) const;  // the column that improves most, or -1
  int count_extras(int job) const { return extras_in_[static_cast<size_t>(job)]; }

  void add_usage(int job, double sign);
  void set_keys(int job, int first, int second);
  bool keys_fit(int job) const;
  void refactor();
  void recompute_values();
  void recompute_prices();
  void direction(int job, int column, std::array<double, 2>& own);
  Leaving ratio_test(int job, const std::array<double, 2>& own);
  void consider(Leaving& best, bool choosing, double amount, double decrease, int extra, int job, int key) const;
  void exchange(int job, int column, const std::array<double, 2>& own, const Leaving& leaving);
  void step(int job, int column);

  std::vector<Keys> keys_;
  std::vector<uint16_t> extras_in_;
  std::vector<Extra> extras_;
  std::vector<double> inverse_, amounts_, used_, moved_, column_, scratch_;
  bool stretched_to_limit_ = false;
  int64_t stalled_ = 0;
  double threshold_ = 1e-12;  // what a column must gain to come in
};

}  // namespace trireme::fleet
