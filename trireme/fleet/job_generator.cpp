#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/fleet/jobs.h"

namespace trireme::fleet {

namespace {

struct Template {
  std::string type;
  bool distributed;  // runs on more than one device
};

const std::vector<Template>& templates() {
  static const std::vector<Template> table = [] {
    std::vector<Template> all;
    const auto add = [&](const char* model, std::initializer_list<int> batch_sizes, bool distributed) {
      for (int size : batch_sizes) all.push_back({fmt::format("{} (batch size {})", model, size), distributed});
    };
    add("ResNet-18", {16, 32, 64, 128, 256}, true);
    add("ResNet-50", {16, 32, 64, 128}, true);
    add("Transformer", {16, 32, 64, 128, 256}, true);
    add("LM", {5, 10, 20, 40, 80}, true);
    add("Recommendation", {512, 1024, 2048, 4096, 8192}, false);
    all.push_back({"A3C", false});
    all.push_back({"CycleGAN", false});
    return all;
  }();
  return table;
}

}  // namespace

JobGenerator::JobGenerator(const Options& options, const Throughputs& table)
    : options_(options), table_(table), jobs_(options.seed + 2), arrivals_(options.seed + 3) {
  const auto& types = table.device_types();
  const auto place = std::find(types.begin(), types.end(), "v100");
  if (place == types.end()) {
    refuse("{} has no throughputs of device type v100, by which generated jobs are measured", table.source());
  }
  reference_type_ = static_cast<int>(place - types.begin());
}

int JobGenerator::draw_scale() {
  const double drawn = jobs_.uniform(0, 1);
  if (!options_.multi || drawn < 0.7) return 1;
  return drawn <= 0.8 ? 2 : drawn <= 0.95 ? 4 : 8;
}

double JobGenerator::draw_duration_s() {
  if (jobs_.random() >= 0.8) return 60 * std::pow(10.0, jobs_.uniform(3, 4));
  return 60 * std::pow(10.0, jobs_.uniform(1.5, 3));
}

Job JobGenerator::next() {
  Job job;
  job.id = count_++;
  job.name = std::to_string(job.id);
  job.arrival_s = next_arrival_s_;
  job.scale = draw_scale();
  const double duration_s = draw_duration_s();
  const Template* chosen;
  do {
    chosen = &templates()[jobs_.below(templates().size())];
  } while (job.scale > 1 && !chosen->distributed);
  job.type = chosen->type;
  const int kind = table_.find_kind(job.type, job.scale);
  const double rate = kind < 0 ? Throughputs::not_given : table_.alone(kind, reference_type_);
  if (!(rate > 0)) {
    refuse("{} has no throughput of {} on {} v100, which the generator draws", table_.source(), job.type, job.scale);
  }
  job.steps = duration_s * rate;
  if (options_.whole_steps) job.steps = std::floor(job.steps);
  job.place = fmt::format("generated job {}", job.id);
  if (options_.mean_interarrival_s > 0) {
    next_arrival_s_ = -std::log(1.0 - arrivals_.random()) / (1.0 / options_.mean_interarrival_s) + next_arrival_s_;
  }
  return job;
}

}  // namespace trireme::fleet
