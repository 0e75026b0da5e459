#include "trireme/spec/plan_file.h"

#include <algorithm>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/words.h"
#include "trireme/spec/parallel_settings.h"
#include "trireme/spec/sync_settings.h"

namespace trireme {

namespace {

constexpr const char* facts = "made_for";

// All that a plan says. What it decides are fields of a configuration.
Settings describe(MadeFor& made_for, RunConfig& decisions) {
  Settings settings("plan");
  settings.section(facts, "What the plan was made for.");
  settings.add("made_for.ranks", made_for.ranks, "Ranks of the run.").at_least(1).at_most(1'000'000);
  settings.add("made_for.layers", made_for.layers, "Layers of the model.").at_least(1);
  settings.add("made_for.batch", made_for.batch, "Samples of a step (train.batch).").at_least(1);
  describe_parallel(settings, decisions.parallel);
  settings.section("train", "What a rank takes at once.");
  describe_microbatch(settings, decisions.train);
  settings.section("memory", "What a rank holds.");
  describe_activations(settings, decisions.memory);
  describe_sync(settings, decisions.sync);
  settings.add_version(plan_version, "Version of this format.");
  return settings;
}

bool is_fact(const std::string& key) { return key.starts_with(std::string(facts) + "."); }

// The configuration that asks for exactly this plan.
RunConfig decisions_of(const Plan& plan) {
  RunConfig config;
  auto& parallel = config.parallel;
  parallel.pipe = plan.mesh.stages;
  if (plan.mesh.even()) {
    parallel.data = plan.mesh.replicas();
  } else {
    parallel.replicas.assign(plan.mesh.replicas_by_stage.begin(), plan.mesh.replicas_by_stage.end());
  }
  parallel.shares = plan.dealing.options().weights;
  parallel.schedule = plan.schedule;
  parallel.options = plan.schedule_options;
  parallel.cuts.assign(plan.begins.begin() + 1, plan.begins.end());
  config.train.microbatch = plan.dealing.options().most;
  config.memory.activations = plan.activations;
  config.sync = plan.sync;
  return config;
}

// Adds to a refusal the line that it is about.
template <class Check>
void at_line(const std::string& location, const Check& check) {
  try {
    check();
  } catch (Error& error) {
    error.add_context(location);
    throw;
  }
}

}  // namespace

std::string PlanFile::location(const std::string& key) const {
  const auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& one) { return one.key == key; });
  if (line == lines.end()) fail("the plan does not say {}", key);
  return line->location;
}

std::string plan_yaml(const Plan& plan) {
  auto made_for = plan.made_for;
  auto decisions = decisions_of(plan);
  return describe(made_for, decisions).resolved_yaml();
}

PlanFile read_plan(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) refuse_missing(path, "plan");
  PlanFile file{.path = path};
  RunConfig decisions;
  auto settings = describe(file.made_for, decisions);
  settings.read_file(path);
  settings.check();
  for (const auto& key : settings.keys()) {
    if (settings.is_set(key)) file.lines.push_back({key, settings.text(key), settings.location(key)});
  }
  if (file.lines.empty()) refuse("{}: this plan is empty: give plan.yaml of a run's folder", path.string());
  for (const auto& key : settings.keys()) {
    if (!is_fact(key) || settings.is_set(key)) continue;
    refuse(
        "{}: {} is missing: a plan says what it was made for, so that no other run takes it for its own; add it, as "
        "plan.yaml of a run's folder has it",
        path.string(), key);
  }
  return file;
}

std::optional<PlanFile> plan_of_run(const std::filesystem::path& run_dir) {
  const auto path = run_dir / "plan.yaml";
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(facts)) return read_plan(path);
  }
  return std::nullopt;
}

void take_decisions(const PlanFile& file, Settings& configuration) {
  for (const auto& line : file.lines) {
    if (!is_fact(line.key)) configuration.take(line.key, line.text, line.location);
  }
}

void check_decisions(const PlanFile& file, const RunConfig& config, const Settings& settings) {
  auto layout = config.parallel;
  layout.schedule = ScheduleKind::gpipe;  // schedules change nothing of who is in which stage
  at_line(file.location("made_for.ranks"), [&] { make_mesh(layout, static_cast<int>(file.made_for.ranks)); });
  if (config.parallel.pipe > file.made_for.layers) {
    refuse("{}: parallel.pipe = {}: the model has {}, and a stage needs at least one", settings.location("parallel.pipe"),
           config.parallel.pipe, counted(file.made_for.layers, "layer"));
  }
  at_line(settings.location("parallel.cuts"), [&] { check_cuts(config.parallel.cuts, file.made_for.layers); });
}

void check_made_for(const PlanFile& file, const MadeFor& run) {
  const auto compare = [&](const char* key, int64_t wanted, int64_t found, const std::string& advice) {
    if (wanted == found) return;
    refuse("{}: {} = {}, but this run has {}: {}, or use a plan that was made for this run", file.location(key), key,
           wanted, found, advice);
  };
  const auto& plan = file.made_for;
  compare("made_for.ranks", plan.ranks, run.ranks, fmt::format("start {}", counted(plan.ranks, "rank")));
  compare("made_for.layers", plan.layers, run.layers, "train the model that it was made for");
  compare("made_for.batch", plan.batch, run.batch, fmt::format("set train.batch={}", plan.batch));
}

}  // namespace trireme
