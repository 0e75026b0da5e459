#include "trireme/parallel/free_sync.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

// Whether a multiple of `every` was passed.
bool passed(int64_t every, int64_t done, int64_t now) { return every > 0 && now / every > done / every; }

}  // namespace

FreeSync::FreeSync(const Replica& replica)
    : LooseSync(replica), desk_(replica.world, *replica.postbox, [&config = replica.config](int64_t done, int64_t now) {
        return now >= config.train.steps || passed(config.train.eval_every, done, now) ||
               passed(config.checkpoint.every, done, now);
      }) {}

void FreeSync::begin() {
  LooseSync::begin();
  job_step_ = replica_.progression.step;
  counted_ = own_steps();
  desk_.open(job_step_, own_steps());
}

// Where all ranks stand together they go by what they agreed on, though others may have told of their next steps since.
int64_t FreeSync::job_step() const {
  return together_ ? job_step_ : std::min(desk_.job_step(), replica_.config.train.steps);
}

void FreeSync::told(const OwnStep& step) {
  count_own(step);
  own_loss_ = step.loss / replica_.share;
  wants_stop_ = step.wants_stop;
}

void FreeSync::adopt() {
  take_in();
  desk_.tell(own_steps(), own_loss_, wants_stop_);
  loss_ = rank() == 0 ? desk_.loss() : own_loss_;
  stop_agreed_ = false;
  together_ = desk_.called();
  if (together_) meet();
}

void FreeSync::meet() {
  leave();
  settle();
  // How far the job is, whether anybody wants to stop, and the mean of the ranks' last losses.
  const auto sums = at::zeros({3}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  sum[0] = static_cast<double>(own_steps() - counted_);
  sum[1] = wants_stop_ ? 1 : 0;
  sum[2] = own_loss_ * replica_.share;
  communicator().now([&] { return communicator().all_reduce(sums, ReduceOp::sum, "meet"); });
  job_step_ = std::min(job_step_ + static_cast<int64_t>(sum[0]) / ranks(), replica_.config.train.steps);
  stop_agreed_ = sum[1] > 0;
  loss_ = sum[2];
  counted_ = own_steps();
  desk_.open(job_step_, own_steps());
}

}  // namespace trireme
