// What the kinds share in which ranks go their own ways and meet when they are called (desk).
#pragma once

#include "trireme/parallel/desk.h"
#include "trireme/parallel/loose_sync.h"

namespace trireme {

class FreeSync : public LooseSync {
 public:
  explicit FreeSync(const Replica& replica);

  void begin() override;
  int64_t job_step() const override;
  void adopt() final;

 protected:
  // Takes in what has come.
  virtual void take_in() {}
  // At a meeting: returns when everything has come that was on its way to this rank. Collective.
  virtual void settle() {}
  // Before a meeting: nobody should wait for this rank any more.
  virtual void leave() {}

  void told(const OwnStep& step);  // in every update()

 private:
  void meet();

  Desk desk_;
  int64_t job_step_ = 0, counted_ = 0;  // steps of the job, and of this rank, at the last meeting
  double own_loss_ = 0;
  bool wants_stop_ = false;
};

}  // namespace trireme
