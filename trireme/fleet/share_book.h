// The books of the round mechanism: what share of time each job, or pair of jobs that share devices, should have on
// each type, and what it has had. From these come the priorities by which a round's jobs are chosen:
//   priority = X · τ / t,  X the share, t the time received since the last solve, τ that of all jobs on the type
// and, among equals, the deficit that earlier solves left: time that should have been received less time that was.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/fleet/policy.h"

namespace trireme::fleet {

class ShareBook {
 public:
  // A job by itself, or a pair. `first` and `second` are places in the scheduler's list of jobs; of a pair the first is
  // the older.
  struct Row {
    int first = 0, second = -1;
    int scale = 1;
    bool solved = false;  // the policy has seen it
    bool shared() const { return second >= 0; }
  };

  ShareBook(int types, double round_s) : types_(types), round_s_(round_s), type_time_(static_cast<size_t>(types), 0) {}

  const std::vector<Row>& rows() const { return rows_; }
  double rate(size_t row, int type, int which) const { return rates_[which][cell(row, type)]; }
  double share(size_t row, int type) const { return share_[cell(row, type)]; }
  double received(size_t row, int type) const { return received_[cell(row, type)]; }
  double deficit(size_t row, int type) const { return deficit_[cell(row, type)]; }
  double type_time(int type) const { return type_time_[static_cast<size_t>(type)]; }
  double priority(size_t row, int type) const;

  // Steps a second of the row's job or jobs, by type. A pair begins with no time received, a job with half a round.
  void add(int job, int scale, const double* rates);
  void add_pair(int older, int newer, int scale, const double* rates, const double* newer_rates);

  // Takes out jobs; `new_place` says where each remaining one stands from now on, and -1 for those that go. Answers in
  // the same way where each row stands.
  const std::vector<int>& remove(const std::vector<int>& new_place);

  void credit(size_t row, int type, double seconds);

  // Settles what the last allocation promised over `elapsed_s`, and begins to count anew.
  void settle(double elapsed_s);

  // Shares by row, in the order of rows(); all rows are seen from now on.
  void set_shares(std::vector<double> shares);

  // Rows that may run on a type, best first: by priority, deficit, share, and age. Without `gaps` only those with a
  // positive priority; with `taken`, none of jobs that are marked there.
  const std::vector<int>& order(int type, bool gaps, const std::vector<char>* taken = nullptr);

 private:
  struct Key {
    double priority, deficit, share;
    int row;
  };

  size_t cell(size_t row, int type) const { return row * static_cast<size_t>(types_) + static_cast<size_t>(type); }
  bool can_run(size_t row, int type) const {
    return rates_[0][cell(row, type)] > 0 && (!rows_[row].shared() || rates_[1][cell(row, type)] > 0);
  }
  void sort_into_lists();
  void append(const Row& row, const double* rates, const double* second_rates, double received);
  const std::vector<int>& without_priority(int type);

  int types_;
  double round_s_;
  std::vector<Row> rows_;
  std::vector<double> received_, deficit_, share_;
  std::vector<double> rates_[2];
  std::vector<double> type_time_;
  std::vector<std::vector<int>> positive_;  // by type: rows with a share there that can run; renewed when they change
  std::vector<std::vector<int>> no_priority_;  // by type: the others that can run, in their order
  bool lists_valid_ = false;
  std::vector<char> sorted_;  // by type: whether no_priority_ is in order
  std::vector<Key> keys_;
  std::vector<int> order_, new_row_;
};

}  // namespace trireme::fleet
