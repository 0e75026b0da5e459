// One rank's way of meeting the others of a SharedGroup: it shows what it calls, says that it has come, and waits for
// the rest. A wait begins with looking again and again, for as long as that costs nobody anything, and ends in sleep.
#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/shared_group.h"

namespace trireme {

class SharedMeeting {
 public:
  SharedMeeting(std::shared_ptr<SharedGroup> group, int rank);
  ~SharedMeeting();  // who still waits for this rank is told that it left

  SharedGroup& group() { return *group_; }
  const std::shared_ptr<SharedGroup>& shared_group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Begins a call; the exhibits are those of this call from here on. `idle`: the thread that waits has nothing better
  // to do, and may keep its core busy for a moment.
  void show(const Call& call, bool idle);
  size_t turn() const { return turn_; }  // which of the two, in turn
  Exhibit& exhibit(int rank) { return group_->lane(rank).exhibits[turn_]; }
  Exhibit& mine() { return exhibit(rank_); }
  Lane& lane(int rank) { return group_->lane(rank); }

  // Says that this rank has come to the next meeting point, and waits for all others.
  void meet();
  // The first meeting of every call: all fingerprints are there and must agree.
  void meet_and_check();

  void set_checking(bool checking) { checking_ = checking; }

 private:
  void await(int rank, uint32_t target);
  bool look(const Lane& peer, uint32_t target) const;

  std::shared_ptr<SharedGroup> group_;
  const int rank_, size_;
  const bool crowded_;  // more ranks than cores
  const bool roomy_;    // two cores a rank, or more
  bool idle_ = false, checking_ = true;
  size_t turn_ = 0;  // which exhibit the current call uses
  std::vector<Call> calls_;
};

}  // namespace trireme
