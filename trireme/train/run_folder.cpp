#include "trireme/train/run_folder.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/base/paths.h"
#include "trireme/observe/metrics_file.h"
#include "trireme/spec/plan_file.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

// N of "NAME-N", or 0.
int64_t number_of(const fs::path& folder, const std::string& name) {
  const auto text = folder.filename().string();
  if (text.rfind(name + "-", 0) != 0) return 0;
  const auto digits = text.substr(name.size() + 1);
  if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::stoll(digits);
}

int64_t newest_number(const std::string& name) {
  int64_t newest = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("runs", none))
    newest = std::max(newest, number_of(entry.path(), name));
  return newest;
}

fs::path numbered(const std::string& name, int64_t number) {
  return fs::path("runs") / fmt::format("{}-{}", name, number);
}

// Settings that decide what the numbers are. The others (how long, how often saved, how watched) may change.
bool may_change(const std::string& key) {
  static const std::vector<std::string> free{"run_dir",
                                             "train.steps",
                                             "train.eval_every",
                                             "train.eval_batches",
                                             "train.nonfinite_limit",
                                             "train.threads",
                                             "train.device",
                                             "train.microbatch",
                                             "data.path",
                                             "data.threads",
                                             "distill.from",
                                             "checkpoint.",
                                             "watchdog.",
                                             "log.",
                                             "comm.",
                                             "parallel.",
                                             "memory.",
                                             "trial.",
                                             "sync.bucket_mb",
                                             "sync.kind",
                                             "sync.order",
                                             "sync.credit_mb"};
  return std::any_of(free.begin(), free.end(), [&](const auto& one) { return key.rfind(one, 0) == 0; });
}

void refuse_changes(const RunConfig& config, const CheckpointInfo& checkpoint) {
  RunConfig now = config, then;
  auto now_settings = describe(now), then_settings = describe(then);
  then_settings.read_text(checkpoint.config, (checkpoint.folder / "manifest.json").string());
  for (const auto& key : now_settings.keys()) {
    if (may_change(key) || now_settings.text(key) == then_settings.text(key)) continue;
    if (!now_settings.is_read(key) || !then_settings.is_read(key)) continue;  // it decides nothing
    // What sync.codec = auto had chosen is the same codec, by its name.
    const bool chosen = key == "sync.codec" && then_settings.text(key) == "auto";
    if (chosen && now_settings.text(key) == checkpoint.codec) continue;
    refuse("{} was {} in the run that {} belongs to and is {} now: resume with the old value, or start a new run", key,
           then_settings.text(key), checkpoint.folder.string(), now_settings.text(key));
  }
}

// The next free runs/NAME-N. Of two runs that begin in one moment each gets a number of its own.
RunFolder next_numbered(const std::string& name, RunFolder::Access access) {
  RunFolder folder;
  for (int64_t number = newest_number(name) + 1;; ++number) {
    folder.path = numbered(name, number);
    if (access == RunFolder::Access::look) return folder;
    folder.lock = FolderLock::take_new(folder.path);
    if (folder.lock) return folder;
  }
}

void enter(RunFolder& folder, RunFolder::Access access) {
  if (access == RunFolder::Access::take) {
    folder.lock = FolderLock::take(folder.path);
  } else {
    FolderLock::check_free(folder.path);
  }
}

}  // namespace

RunFolder RunFolder::fresh(const RunConfig& config, const std::string& name, Access access) {
  if (config.run_dir.empty()) return next_numbered(name, access);
  RunFolder folder;
  folder.path = config.run_dir;
  check_output_folder(folder.path);
  enter(folder, access);
  if (!list_checkpoints(folder.path).empty()) {
    refuse("{} already holds checkpoints: continue that run with {}, or choose another run_dir", folder.path.string(),
           config.model.kind == ModelKind::custom ? "Trainer::resume" : "--resume");
  }
  return folder;
}

RunFolder RunFolder::resume(const RunConfig& config, const std::string& name, const fs::path& from, Access access) {
  RunFolder folder;
  const bool one_checkpoint = !from.empty() && fs::exists(from / "manifest.json");
  if (one_checkpoint) {
    // The folder two levels up, however the checkpoint was named: "step-5/" and "." too.
    const auto run = fs::canonical(from).parent_path().parent_path();
    folder.path = from.is_absolute() ? run : fs::proximate(run);
  } else {
    if (from.empty() && config.run_dir.empty() && newest_number(name) == 0)
      refuse("there is no run to resume: runs/ holds no {}-N", name);
    folder.path = !from.empty()             ? from
                  : !config.run_dir.empty() ? fs::path(config.run_dir)
                                            : numbered(name, newest_number(name));
    if (const auto link = dangling_link(folder.path); !link.empty()) refuse("there is no run to resume: {}", link);
    if (!fs::exists(folder.path)) refuse("there is no run to resume: {} does not exist", folder.path.string());
  }
  enter(folder, access);
  const char* advice = config.model.kind == ModelKind::custom ? "give Trainer::resume" : "continue from it with --from";
  folder.checkpoint = one_checkpoint ? open_checkpoint(from) : newest_checkpoint(folder.path, advice);
  refuse_changes(config, *folder.checkpoint);
  check_metrics_file(folder.path / "metrics.jsonl");  // before anything in the folder is touched
  return folder;
}

void RunFolder::prepare(const std::string& resolved_config, const std::string& plan) const {
  make_folder(path / "checkpoints");
  write_atomically(path / "config.yaml", resolved_config);
  write_atomically(path / "plan.yaml", plan);
}

namespace {

const char* describe(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::decided: return "by all ranks alike, once they know the norm of the whole gradient";
    case UpdateRule::root: return "by the root of each bucket, once all ranks know the norm of the whole gradient";
    case UpdateRule::as_reduced: return "bucket by bucket, as soon as each has been summed";
    case UpdateRule::ahead: return "bucket by bucket, while the next step runs";
    case UpdateRule::loose: return "as sync.kind has it";
    case UpdateRule::flow: return "by each stage, after its own microbatches";
  }
  return "?";
}

}  // namespace

std::string plan_with_comments(const std::vector<StagePlan>& stages, World& world, StageTrainer& trainer) {
  auto plan = trainer.plan();
  plan.sync.codec = trainer.codec();  // where it was chosen by what the machine can do
  std::string text =
      "# How the work of this run was split. To split another one so, or as you change it here:\n"
      "#   trireme train CONFIG.yaml --plan plan.yaml\n" +
      plan_yaml(plan);
  text += "\n# What follows from that, for people to read.\n";
  text += fmt::format("# transport: {}\n", world.communicator().transport_name());
  text += fmt::format("# parameters change: {}\n", describe(plan.update));
  text += "# shares:  # samples of a step, by rank\n";
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto pieces = plan.dealing.pieces(rank);
    text += fmt::format("#   - {{rank: {}, first: {}, samples: {}, microbatches: {}}}\n", rank, pieces.front().first,
                        plan.dealing.samples(rank), pieces.size());
  }
  text += "# stages:\n";
  for (const auto& stage : stages) {
    text += fmt::format(
        "#   - {{stage: {}, replicas: {}, chunks: [{}], layers: {}, parameters: {}, in_flight: {}, bytes: {}}}\n",
        stage.stage, stage.replicas, fmt::join(stage.chunks, ", "), stage.layers, stage.parameters, stage.in_flight,
        stage.total_bytes());
  }
  text += "# buckets:  # of the first stage's gradients, in the order in which they are reduced\n";
  for (const auto& bucket : trainer.store().buckets()) {
    text += fmt::format("#   - {{elements: {}, first: {}, last: {}}}\n", bucket.elements,
                        bucket.parameters.front().parameter->name, bucket.parameters.back().parameter->name);
  }
  return text;
}

}  // namespace trireme
