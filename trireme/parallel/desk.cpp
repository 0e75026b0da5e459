#include "trireme/parallel/desk.h"

#include <ATen/ATen.h>

#include <cmath>

namespace trireme {

namespace {
constexpr MessageTag line_tag{.kind = 17}, call_tag{.kind = 18};
}

Desk::Desk(World& world, Postbox& postbox, std::function<bool(int64_t, int64_t)> due)
    : world_(world), postbox_(postbox), due_(std::move(due)), lines_(static_cast<size_t>(world.size())) {
  const auto failed = [this](std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    failure_ = error;
  };
  if (world.rank() != 0) {
    postbox.listen(0, call_tag, [this](const at::Tensor&) { called_ = true; }, failed);
    return;
  }
  for (int other = 1; other < world.size(); ++other) {
    const auto take = [this, other](const at::Tensor& line) {
      const auto* values = line.const_data_ptr<double>();
      note(other, static_cast<int64_t>(values[0]), values[1], values[2] > 0);
    };
    postbox.listen(other, line_tag, take, failed);
  }
}

void Desk::open(int64_t job_step, int64_t own_steps) {
  auto& communicator = world_.communicator();
  const auto mine = at::full({1}, own_steps, at::kLong);
  const auto all = at::empty({world_.size()}, at::kLong);
  communicator.now([&] { return communicator.all_gather(mine, all, "who did how much"); });
  {
    std::lock_guard lock(mutex_);
    opened_at_ = job_step;
    for (size_t rank = 0; rank < lines_.size(); ++rank)
      lines_[rank].steps = lines_[rank].begun_at = all[static_cast<int64_t>(rank)].item<int64_t>();
    calling_ = false;
    called_ = false;
  }
  // Nobody may be called again before everybody has forgotten the last call.
  communicator.now([&] { return communicator.barrier("the meeting ends"); });
}

void Desk::tell(int64_t own_steps, double loss, bool wants_stop) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  if (world_.rank() == 0) return note(0, own_steps, loss, wants_stop);
  const auto told = at::empty({3}, at::kDouble);
  auto* values = told.mutable_data_ptr<double>();
  values[0] = static_cast<double>(own_steps);
  values[1] = loss;
  values[2] = wants_stop ? 1 : 0;
  postbox_.send(0, line_tag, told);
}

int64_t Desk::job_step_now() const {
  int64_t steps = 0;
  for (const auto& line : lines_) steps += line.steps - line.begun_at;
  return opened_at_ + steps / static_cast<int64_t>(lines_.size());
}

void Desk::note(int rank, int64_t steps, double loss, bool wants_stop) {
  {
    std::lock_guard lock(mutex_);
    auto& known = lines_[static_cast<size_t>(rank)];
    if (steps <= known.steps) return;  // told before a meeting that has been held since
    known.steps = steps;
    known.loss = loss;
    if (calling_ || !(wants_stop || due_(opened_at_, job_step_now()))) return;
    calling_ = true;
  }
  call_all();
}

void Desk::call_all() {
  for (int other = 1; other < world_.size(); ++other) postbox_.send(other, call_tag, at::zeros({1}, at::kByte));
  called_ = true;
}

int64_t Desk::job_step() const {
  std::lock_guard lock(mutex_);
  return world_.rank() == 0 ? job_step_now() : opened_at_;
}

double Desk::loss() const {
  std::lock_guard lock(mutex_);
  double sum = 0;
  int told = 0;
  for (const auto& line : lines_) {
    if (!line.loss) continue;  // it has told of no step yet, or of none since a resume
    sum += *line.loss;
    ++told;
  }
  return told > 0 ? sum / told : 0;
}

}  // namespace trireme
