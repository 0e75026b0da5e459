// TensorBoard's event file in a run's folder, with the tags of torchtitan, so that runs of both share their charts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "trireme/observe/step_report.h"

namespace trireme {

// Null, after a note that says what to install, when this program was built without protozero. A run that resumes from
// a checkpoint of step N passes N: TensorBoard then forgets what earlier files of the folder say of later steps.
std::unique_ptr<MetricSink> make_tensorboard(const std::filesystem::path& folder, int64_t resume_step = -1);

bool tensorboard_built();

}  // namespace trireme
