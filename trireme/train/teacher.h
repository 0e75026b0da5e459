// Distillation (Hinton, Vinyals and Dean 2015): a student learns the targets and, beside them, what a trained teacher
// says of the same samples. With weight w and temperature T the loss of an item is
//
//   (1 − w) · CE(student, target) + w · T² · KL(softmax(teacher / T) ‖ softmax(student / T)).
//
// The teacher is a model that is only asked: its values lie in no bucket and in no checkpoint of the student.
#pragma once

#include "trireme/train/loaded_model.h"

namespace trireme {

// Σ T²·KL over the items whose target is learnt; scores are [..., classes], targets [...].
at::Tensor distillation_sum(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& targets,
                            double temperature);

// The model that distill.from names, or an error that says so; `answers` is how many the student gives.
SavedModel find_teacher(const RunConfig& config, int64_t answers);

class Teacher {
 public:
  // On the device and in the precision of the student.
  Teacher(const RunConfig& config, int64_t answers, at::Device device);

  struct Loss {
    at::Tensor whole;         // the sum over the items, of both parts
    at::Tensor distillation;  // T²·KL alone
  };
  // `targets_loss` is the student's own, CE. The inputs are those that the student got for these outputs.
  Loss add(const at::Tensor& targets_loss, const at::Tensor& outputs, const at::Tensor& targets,
           const at::Tensor& inputs, const Documents& documents) const;

  int64_t bytes() const;

 private:
  const DistillConfig config_;
  const LoadedModel model_;
};

}  // namespace trireme
