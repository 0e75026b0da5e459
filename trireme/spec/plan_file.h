// A plan as a file: plan.yaml in a run's folder, which a person reads, edits and gives to `trireme train --plan`. It
// says what the plan was made for (made_for), and what it decides, under the keys that a configuration has for that.
//
// Whoever reads a plan takes its decisions into the configuration, and make_plan() makes the plan of that, as always.
// So a plan that was written is read back equal, and one that was edited is checked as every configuration is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/plan.h"

namespace trireme {

// The version of the format: it grows as config_version does.
inline constexpr int64_t plan_version = 1;

struct PlanFile {
  struct Line {
    std::string key, text;
    std::string location;  // "plan.yaml:7"
  };

  std::filesystem::path path;
  MadeFor made_for;
  std::vector<Line> lines;  // all that the file says, facts and decisions

  std::string location(const std::string& key) const;
};

std::string plan_yaml(const Plan& plan);

// Refuses what is no plan, with the line. A decision that is left out is left to the configuration; a fact may not be.
PlanFile read_plan(const std::filesystem::path& path);

// The plan in a run's folder, if one is there that can be read back: earlier programs wrote theirs for people alone.
std::optional<PlanFile> plan_of_run(const std::filesystem::path& run_dir);

// Gives the configuration what the plan decides.
void take_decisions(const PlanFile& file, Settings& configuration);

// Refuses decisions that do not fit what the plan was made for: other ranks than there are, stages without layers.
void check_decisions(const PlanFile& file, const RunConfig& config, const Settings& settings);

// Refuses a run that is not the one that the plan was made for.
void check_made_for(const PlanFile& file, const MadeFor& run);

}  // namespace trireme
