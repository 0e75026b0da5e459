#include "trireme/train/teacher.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/memory/counter.h"

namespace trireme {

at::Tensor distillation_sum(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& targets,
                            double temperature) {
  const auto log_probabilities = [&](const at::Tensor& scores) {
    const auto type = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::log_softmax(scores.reshape({-1, scores.size(-1)}).to(type) / temperature, -1);
  };
  const auto taught = log_probabilities(teacher), learnt = log_probabilities(student);
  const auto rows = at::kl_div(learnt, taught, at::Reduction::None, /*log_target=*/true).sum(-1);
  return rows.masked_fill(targets.reshape({-1}) == ignored_target, 0).sum() * (temperature * temperature);
}

SavedModel find_teacher(const RunConfig& config, int64_t answers) {
  try {
    auto saved = find_model(config.distill.from);
    check_same_questions(saved, config.model, answers);
    return saved;
  } catch (Error& error) {
    error.add_context("distill.from");
    throw;
  }
}

Teacher::Teacher(const RunConfig& config, int64_t answers, at::Device device)
    : config_(config.distill), model_(load_model(find_teacher(config, answers), config.train.precision, device)) {
  for (const auto& parameter : model_.model->parameters()) hand_over(parameter->value, Owner::teacher);
}

Teacher::Loss Teacher::add(const at::Tensor& targets_loss, const at::Tensor& outputs, const at::Tensor& targets,
                           const at::Tensor& inputs, const Documents& documents) const {
  const auto term = distillation_sum(outputs, model_(inputs, documents), targets, config_.temperature);
  return {targets_loss * (1 - config_.weight) + term * config_.weight, term.detach()};
}

int64_t Teacher::bytes() const {
  int64_t sum = 0;
  for (const auto& parameter : model_.model->parameters()) sum += static_cast<int64_t>(parameter->value.nbytes());
  return sum;
}

}  // namespace trireme
