#include "trireme/train/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/host.h"
#include "trireme/base/log.h"
#include "trireme/base/safetensors.h"
#include "trireme/spec/models/models.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/disk_room.h"
#include "trireme/train/run_folder.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

// Runs in a folder of its own, which is also the current one: new runs go to ./runs.
class Run : public testing::Test {
 protected:
  Run() : before_(fs::current_path()) { fs::current_path(folder / ""); }
  ~Run() override { fs::current_path(before_); }

  RunConfig config_in(const std::string& name, RunConfig config = small_gpt()) {
    config.run_dir = folder / name;
    config.checkpoint.every = 5;
    return config;
  }

  static RunOptions resume(const fs::path& from = {}) { return {.resume = true, .resume_from = from}; }

  TemporaryFolder folder;

 private:
  fs::path before_;
};

TEST_F(Run, NumbersTheFoldersOfAName) {
  RunConfig config;
  EXPECT_EQ(RunFolder::fresh(config, "gpt").path, "runs/gpt-1");
  fs::create_directories("runs/gpt-1");
  fs::create_directories("runs/gpt-9");
  fs::create_directories("runs/gpt-10");
  fs::create_directories("runs/gpt-x");
  fs::create_directories("runs/gpt-large-77");
  fs::create_directories("runs/gpt-123456789012345678901234567890");
  EXPECT_EQ(RunFolder::fresh(config, "gpt").path, "runs/gpt-11");
  EXPECT_EQ(RunFolder::fresh(config, "gpt-large").path, "runs/gpt-large-78");
  EXPECT_EQ(RunFolder::fresh(config, "mlp").path, "runs/mlp-1");
  config.run_dir = "elsewhere";
  EXPECT_EQ(RunFolder::fresh(config, "gpt").path, "elsewhere");
}

TEST_F(Run, LeavesItsFolderBehind) {
  auto config = config_in("run");
  config.train.eval_every = 4;
  const auto result = run_whole(config, {}, 2);
  EXPECT_EQ(result.run_dir, folder / "run");
  EXPECT_EQ(result.steps, 10);
  EXPECT_EQ(result.stopped_by, 0);
  EXPECT_EQ(fs::path(result.checkpoint).filename(), "step-10");
  EXPECT_TRUE(result.eval_loss);
  EXPECT_THAT(result.brief(), HasSubstr("trained 10 steps: loss "));
  EXPECT_EQ(result.json().at("steps"), 10);

  EXPECT_EQ(text_of(folder / "run/config.yaml"), resolved_yaml(config));
  EXPECT_EQ(resolved_yaml(load_config({folder / "run/config.yaml"}, {})), resolved_yaml(config));
  EXPECT_THAT(text_of(folder / "run/plan.yaml"),
              AllOf(HasSubstr("\n  ranks: 2\n"), HasSubstr("\nsync:\n  kind: allreduce\n"),
                    HasSubstr("{rank: 1, first: 3, samples: 4, microbatches: 1}"),
                    HasSubstr("{stage: 0, replicas: 2, chunks: [embedding - head], layers: 4, ")));

  std::set<int64_t> steps, evaluated, saved;
  for (const auto& line : lines_of(folder / "run/metrics.jsonl")) {
    if (line.contains("loss")) {
      steps.insert(line.at("step").get<int64_t>());
      EXPECT_GT(line.at("tokens_per_s"), 0);
      EXPECT_TRUE(line.at("memory").contains("parameters"));
    }
    if (line.contains("eval_loss")) evaluated.insert(line.at("step").get<int64_t>());
    if (line.value("event", "") == "checkpoint") saved.insert(line.at("step").get<int64_t>());
  }
  EXPECT_EQ(steps, (std::set<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(evaluated, (std::set<int64_t>{4, 8, 10}));
  EXPECT_EQ(saved, (std::set<int64_t>{5, 10}));
  EXPECT_EQ(refusal_of([&] { run_whole(config); }),
            (folder / "run").string() +
                " already holds checkpoints: continue that run with --resume, or choose another run_dir");
}

// Ten steps at once, or ten of which the last five were lost and done again: the same bytes.
TEST_F(Run, ResumesAsIfNothingHadHappened) {
  const auto last = folder / "run/checkpoints/step-10";
  for (const auto& model : {small_gpt(), small_mlp()}) {
    for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
      for (const int ranks : {1, 3}) {
        auto config = config_in("run", model);
        config.train.precision = precision;
        fs::remove_all(folder / "run");
        run_whole(config, {}, ranks);
        const auto parameters = text_of(last / "model.safetensors"), state = text_of(last / "optimizer.safetensors");
        EXPECT_GT(parameters.size(), 1000u);
        fs::remove_all(last);
        const auto result = run_whole(config, resume(), ranks);
        EXPECT_EQ(result.steps, 10);
        EXPECT_TRUE(text_of(last / "model.safetensors") == parameters)
            << ranks << " ranks, precision " << static_cast<int>(precision);
        EXPECT_TRUE(text_of(last / "optimizer.safetensors") == state)
            << ranks << " ranks, precision " << static_cast<int>(precision);
      }
    }
  }
}

// What ranks told each other before a run was interrupted is gone: the first loss is not told from nothing.
TEST_F(Run, TellsTheLossFromTheFirstStepAfterAResume) {
  for (const auto kind : {SyncKind::stale, SyncKind::gossip, SyncKind::elastic, SyncKind::server, SyncKind::local,
                          SyncKind::eager}) {
    auto config = config_in("run");
    config.sync.kind = kind;
    config.train.batch = 8;
    config.train.steps = 5;
    fs::remove_all(folder / "run");
    run_whole(config, {}, 2);
    config.train.steps = 9;
    run_whole(config, resume(), 2);
    std::vector<double> losses;
    for (const auto& line : lines_of(folder / "run/metrics.jsonl")) {
      if (line.contains("loss")) losses.push_back(line.at("loss"));
    }
    ASSERT_GE(losses.size(), 6u);
    for (const double loss : losses) EXPECT_NEAR(loss / losses.front(), 1, 0.4) << static_cast<int>(kind);
  }
}

// On other ranks and with other buckets a resumed run ends where the whole one did, but for rounding.
TEST_F(Run, ResumesOnOtherRanks) {
  auto config = config_in("run");
  run_whole(config, {}, 3);
  const auto whole = run_whole(config_in("other"), {}, 1).loss;
  fs::remove_all(folder / "run/checkpoints/step-10");
  config.sync.bucket_mb = 0.001;
  config.train.microbatch = 2;
  EXPECT_NEAR(run_whole(config, resume(), 2).loss / whole, 1, 1e-9);
}

// Where the state lies, and how gradients travel, does not show in a checkpoint; a run may go on with another kind.
TEST_F(Run, SavesTheSameWithRoots) {
  auto config = config_in("all"), rooted = config_in("rooted");
  config.sync.bucket_mb = rooted.sync.bucket_mb = 0.001;
  config.optimizer.clip = rooted.optimizer.clip = 0;  // the norm is summed up in another order
  rooted.sync.kind = SyncKind::root;
  const auto whole = run_whole(config, {}, 3).loss;
  EXPECT_EQ(run_whole(rooted, {}, 3).loss, whole);
  for (const auto* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_TRUE(text_of(folder / "all/checkpoints/step-10" / file) ==
                text_of(folder / "rooted/checkpoints/step-10" / file))
        << file;
  }
  fs::remove_all(folder / "rooted/checkpoints/step-10");
  fs::remove_all(folder / "all/checkpoints/step-10");
  rooted.sync.kind = SyncKind::allreduce;
  EXPECT_EQ(run_whole(rooted, resume(), 3).loss, whole);
  config.sync.kind = SyncKind::root;
  EXPECT_EQ(run_whole(config, resume(), 3).loss, whole);
}

// Who works on which sample is no part of a checkpoint.
TEST_F(Run, ResumesWithOtherShares) {
  const auto losses = [&](const std::string& name) {
    std::vector<double> found;
    for (const auto& line : lines_of(folder / name / "metrics.jsonl")) {
      if (line.contains("loss")) found.push_back(line.at("loss"));
    }
    return found;
  };
  run_whole(config_in("whole"), {}, 1);
  auto config = config_in("run");
  config.parallel.shares = {3, 1};
  run_whole(config, {}, 2);
  EXPECT_THAT(text_of(folder / "run/plan.yaml"),
              AllOf(HasSubstr("{rank: 0, first: 0, samples: 5,"), HasSubstr("{rank: 1, first: 5, samples: 2,")));
  for (const auto& shares : {std::vector<double>{1, 2, 5}, std::vector<double>{}}) {
    fs::remove_all(folder / "run/checkpoints/step-10");
    config.parallel.shares = shares;
    run_whole(config, resume(), 3);
    const auto expected = losses("whole"), found = losses("run");
    ASSERT_EQ(found.size(), 10u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1, 1e-9) << "step " << i + 1;
  }
}

TEST_F(Run, ContinuesItsMetricsWithoutRepeating) {
  auto config = config_in("run");
  run_whole(config);
  fs::remove_all(folder / "run/checkpoints/step-10");  // killed before its last checkpoint was whole
  run_whole(config, resume());
  std::vector<int64_t> steps;
  std::vector<std::string> events;
  for (const auto& line : lines_of(folder / "run/metrics.jsonl")) {
    if (line.contains("loss")) steps.push_back(line.at("step").get<int64_t>());
    if (line.contains("event")) events.push_back(line.at("event"));
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_THAT(events, testing::IsSupersetOf({"started", "resumed", "checkpoint"}));
}

// A newer program went on with the run: nothing of it is touched.
TEST_F(Run, RefusesToResumeWhatANewerProgramWrote) {
  auto config = config_in("run", small_mlp());
  run_whole(config);
  const fs::path run = folder / "run", manifest = run / "checkpoints/step-10/manifest.json";
  const auto put = [](const fs::path& path, std::string text, const std::string& now, const std::string& later) {
    const auto place = text.find(now);
    ASSERT_NE(place, std::string::npos) << path;
    std::ofstream(path) << text.replace(place, now.size(), later);
  };
  const auto metrics = text_of(run / "metrics.jsonl"), saved = text_of(manifest),
             resolved = text_of(run / "config.yaml");
  config.train.steps = 12;
  put(run / "metrics.jsonl", metrics, "\"version\":1", "\"version\":2");
  for (const auto& from : {fs::path(), run / "checkpoints/step-5"}) {
    EXPECT_THAT(refusal_of([&] { run_whole(config, resume(from), 2); }),
                HasSubstr("metrics.jsonl was made by a newer Trireme: it has version 2"));
  }
  put(run / "metrics.jsonl", metrics, "\"version\":1", "\"version\":1");
  put(manifest, saved, "\"version\": 1", "\"version\": 2");
  EXPECT_THAT(refusal_of([&] { run_whole(config, resume()); }), HasSubstr("was made by a newer Trireme"));
  put(manifest, std::regex_replace(saved, std::regex("\"xxh3\": \"[0-9a-f]+\"\n\\}"), "\"later\": 1\n}"), "version: 1\\n",
      "version: 2\\n");
  EXPECT_THAT(refusal_of([&] { run_whole(config, resume()); }),
              HasSubstr("manifest.json:1: version = 2: made by a newer Trireme"));
  put(manifest, saved, "version: 1\\n", "version: 1\\n");
  EXPECT_EQ(text_of(run / "metrics.jsonl"), metrics);
  EXPECT_EQ(text_of(run / "config.yaml"), resolved);
  EXPECT_EQ(list_checkpoints(run).size(), 2u);
  EXPECT_EQ(run_whole(config, resume()).steps, 12);
}

TEST_F(Run, ResumesTheNewestOfItsNameOrTheOneNamed) {
  auto config = small_mlp();
  config.train.steps = 4;
  config.checkpoint.every = 2;
  const RunOptions options{.name = "mlp"};
  run_whole(config, options);
  run_whole(config, options);
  config.train.steps = 6;
  EXPECT_EQ(run_whole(config, {.name = "mlp", .resume = true}).run_dir, "runs/mlp-2");
  EXPECT_EQ(run_whole(config, resume("runs/mlp-1")).run_dir, "runs/mlp-1");
  config.train.steps = 8;
  for (const auto* from : {"runs/mlp-1/checkpoints/step-2", "runs/mlp-1/checkpoints/step-2/",
                           "./runs/mlp-1/checkpoints/../checkpoints/step-2"}) {
    const auto folder_found = RunFolder::resume(config, "mlp", from);
    EXPECT_EQ(fs::canonical(folder_found.path), fs::canonical("runs/mlp-1")) << from;
    EXPECT_EQ(folder_found.checkpoint->step, 2);
  }
  fs::current_path("runs/mlp-1/checkpoints/step-2");
  EXPECT_EQ(fs::canonical(RunFolder::resume(config, "mlp", ".").path), fs::canonical(folder / "runs/mlp-1"));
  fs::current_path(folder / "");
  EXPECT_EQ(refusal_of([&] { RunFolder::resume(config, "gpt", {}); }),
            "there is no run to resume: runs/ holds no gpt-N");
  EXPECT_THAT(refusal_of([&] { RunFolder::resume(config, "mlp", "runs/nothing"); }),
              HasSubstr("runs/nothing does not exist"));
}

// Nothing is left to do: the run says so by its checkpoint, and does not write another.
TEST_F(Run, ResumesARunThatIsComplete) {
  auto config = config_in("run", small_mlp());
  run_whole(config);
  const auto was = text_of(folder / "run/config.yaml"), plan = text_of(folder / "run/plan.yaml");
  config.log.every = 1;
  const auto result = run_whole(config, resume(), 2);
  EXPECT_EQ(result.steps, 10);
  EXPECT_EQ(fs::path(result.checkpoint).filename(), "step-10");
  EXPECT_EQ(text_of(folder / "run/config.yaml"), was);
  EXPECT_EQ(text_of(folder / "run/plan.yaml"), plan);
  config.train.steps = 11;
  run_whole(config, resume(), 2);
  EXPECT_NE(text_of(folder / "run/plan.yaml"), plan);
}

TEST_F(Run, RefusesToResumeWithOtherSettings) {
  auto config = config_in("run", small_mlp());
  config.train.steps = 2;
  run_whole(config);
  const auto refused = [&](const std::function<void(RunConfig&)>& change) {
    auto changed = config;
    change(changed);
    return refusal_of([&] { run_whole(changed, resume()); });
  };
  EXPECT_THAT(refused([](RunConfig& changed) { changed.train.seed = 2; }),
              AllOf(HasSubstr("train.seed was 1 in the run that "), HasSubstr(" and is 2 now")));
  EXPECT_THAT(refused([](RunConfig& changed) { changed.model.width = 32; }), HasSubstr("model.width was 16"));
  EXPECT_THAT(refused([](RunConfig& changed) { changed.optimizer.lr = 0.5; }), HasSubstr("optimizer.lr was 0.1"));
  EXPECT_THAT(refused([](RunConfig& changed) { changed.optimizer.momentum = 0.5; }),
              HasSubstr("optimizer.momentum was 0.9"));
  EXPECT_THAT(refused([](RunConfig& changed) { changed.train.batch = 8; }), HasSubstr("train.batch was 7"));
  EXPECT_THAT(refused([](RunConfig& changed) { changed.train.precision = Precision::fp32; }),
              HasSubstr("train.precision was fp64"));
  // What a run does not read decides nothing of it; what only one of the two runs reads was not decided before.
  auto allowed = config;
  allowed.sync.staleness = 2;
  allowed.sync.codec.keep = 0.5;
  allowed.optimizer.beta1 = 0.5;
  allowed.model.heads = 4;
  allowed.distill.weight = 0.1;
  allowed.data.dtype = TokenType::uint32;
  allowed.train.steps = 3;
  allowed.train.microbatch = 2;
  allowed.checkpoint.keep = 1;
  allowed.log.every = 1;
  EXPECT_EQ(run_whole(allowed, resume(), 2).steps, 3);
}

// A full disk, played by a limit on the size of files in a process of its own. A save that fails on the way is no
// reason to end; a run that ends without its last state is not done.
TEST_F(Run, FailsWhenItsLastStateCannotBeSaved) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto child = [&] {
    auto config = config_in("run");
    run_whole(config);
    const auto before = text_of(folder / "run/checkpoints/step-10/model.safetensors");
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{16'384, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    config.train.steps = 20;
    int status = 0;
    std::string said;
    try {
      run_whole(config, resume(), 2);
    } catch (const Error& error) {
      status = error.exit_status();
      said = error.what();
    }
    const bool untouched = text_of(folder / "run/checkpoints/step-10/model.safetensors") == before;
    const auto left = list_checkpoints(folder / "run");
    const bool only =
        left.size() == 2 && left[0].filename() == "step-10" && !fs::exists(folder / "run/checkpoints/step-20.partial");
    const auto newest = (folder / "run/checkpoints/step-10").string();
    const bool told =
        said.find("the last checkpoint, of step 20, was not saved: ") == 0 &&
        said.find("steps 11 to 20 are lost; the newest whole checkpoint is " + newest) != std::string::npos;
    const bool all_steps = lines_of(folder / "run/metrics.jsonl").back().value("step", 0) == 20;
    std::error_code ignored;
    fs::remove_all(folder / "", ignored);  // this process leaves without its destructors
    fprintf(stderr, "%s\n", said.c_str());
    _exit(status == 1 && untouched && only && told && all_steps ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0),
              "warning: the checkpoint of step 15 was not saved: .*File too large");
}

TEST_F(Run, HasItsFolderToItself) {
  auto config = config_in("run", small_mlp());
  const auto others = [&] {
    auto other = config;
    EXPECT_THAT(refusal_of([&] { run_whole(other); }), HasSubstr("run is in use by process "));
    EXPECT_THAT(refusal_of([&] { run_whole(other, resume()); }), HasSubstr("run is in use by process "));
    EXPECT_THAT(refusal_of([&] { forecast_run(other, 1); }), HasSubstr("run is in use by process "));
  };
  RunOptions options;
  int asked = 0;
  options.after_step = [&](const StepReport& report) {
    if (report.step == 2 && asked++ == 0) others();
  };
  EXPECT_EQ(run_whole(config, options).steps, 10);
  EXPECT_EQ(asked, 1);
  config.train.steps = 12;
  EXPECT_EQ(run_whole(config, resume()).steps, 12);
}

// A run that is refused before its first step leaves no folder, and takes no number.
TEST_F(Run, LeavesNoFolderOfARunThatNeverBegan) {
  run_whole(small_mlp(), {.name = "mlp"});
  auto other = small_gpt();
  other.model.from = "runs/mlp-1";
  EXPECT_THAT(refusal_of([&] { run_whole(other, {.name = "mlp"}); }), testing::Not(testing::IsEmpty()));
  EXPECT_FALSE(fs::exists("runs/mlp-2"));
}

// log.txt: what was started, every line with its time, the result.
TEST_F(Run, WritesDownWhatItSays) {
  auto config = config_in("run");
  config.log.every = 5;
  testing::internal::CaptureStderr();
  log::set_file({});
  const auto result = run_whole(config, {}, 2);
  log::end(0);
  testing::internal::GetCapturedStderr();
  const auto text = text_of(folder / "run/log.txt");
  for (const auto* line : {"  trireme ", ": 2 ranks, the first is process ", "  command line: ", "  in folder: ",
                           "  run folder: ", "  step 1/10  loss ", "  step 5/10  loss ", "  step 10/10  loss ",
                           "  trained 10 steps: loss ", "  ended with exit status 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("step 4/10")));
  EXPECT_THAT(text, HasSubstr("on host " + host_name()));
}

TEST_F(Run, CountsThreads) {
  RunConfig config;
  config.train.threads = 3;
  EXPECT_EQ(threads_per_rank(config, 100), 3);
  config.train.threads = 0;
  EXPECT_GE(threads_per_rank(config, 100), 1);
}

// The room that a run needs for its checkpoints, held against what it really takes.
TEST_F(Run, KnowsTheRoomForItsCheckpoints) {
  for (const auto& base : {small_gpt(), small_mlp()}) {
    for (const auto precision : {Precision::fp64, Precision::bf16}) {
      auto config = config_in("run", base);
      config.train.precision = precision;
      config.checkpoint.every = 4;
      config.checkpoint.keep = 2;
      const auto table = model_table(config.model, 20);
      fs::remove_all(folder / "run");
      const auto before = disk_room(config, table, folder / "run", 0);
      EXPECT_EQ(before.next_bytes, before.checkpoint_bytes);
      EXPECT_EQ(before.most_bytes, 3 * before.checkpoint_bytes);  // steps 4 and 8, and 10 before 4 goes
      run_whole(config);
      uint64_t bytes = 0;
      for (const auto* file : {"model.safetensors", "optimizer.safetensors"}) {
        const Safetensors tensors(folder / "run/checkpoints/step-10" / file);
        for (const auto& tensor : tensors.tensors()) bytes += tensor.bytes;
      }
      EXPECT_EQ(before.checkpoint_bytes, bytes);
      EXPECT_EQ(disk_room(config, table, folder / "run", 10).most_bytes, 0u);  // nothing is left to do
      config.train.steps = 30;
      EXPECT_EQ(disk_room(config, table, folder / "run", 10).most_bytes, bytes);  // as many stay as are there
      config.checkpoint.keep = 5;
      EXPECT_EQ(disk_room(config, table, folder / "run", 10).most_bytes, 4 * bytes);
      config.checkpoint.every = 0;
      EXPECT_EQ(disk_room(config, table, folder / "run", 10).most_bytes, bytes);
    }
  }
}

TEST_F(Run, SaysWhatDoesNotFit) {
  DiskRoom room{.run_dir = "runs/a",
                .keep = 3,
                .checkpoint_bytes = 400,
                .next_bytes = 400,
                .most_bytes = 1600,
                .free_bytes = 1600};
  EXPECT_TRUE(room.fits());
  room.free_bytes = 1599;
  EXPECT_FALSE(room.fits());
  EXPECT_TRUE(room.fits_one());
  EXPECT_THAT(room.shortage(),
              AllOf(HasSubstr("with checkpoint.keep = 3 and one that is being written they take 1.60 kB more"),
                    HasSubstr("the file system of runs/a has 1.60 kB free")));
  room.free_bytes = 399;
  EXPECT_FALSE(room.fits_one());
  EXPECT_THAT(room.shortage(), HasSubstr("not even one checkpoint fits: it takes 400 B"));
}

TEST_F(Run, DescribesWhatItWouldDo) {
  const auto text = forecast_run(small_gpt(), 2).full();
  EXPECT_THAT(text, AllOf(HasSubstr("embedding"), HasSubstr("h.1"), HasSubstr("a checkpoint takes "),
                          HasSubstr("the first batch reads well")));
  EXPECT_FALSE(fs::exists("runs"));
  auto config = small_gpt();
  config.parallel.shares = {3, 1};
  EXPECT_THAT(forecast_run(config, 2).full(), HasSubstr("deals the 7 samples of a step to the replicas as 5, 2\n"));
  EXPECT_THAT(refusal_of([&] { forecast_run(config, 3); }), HasSubstr("is for 2 replicas, but the ranks make 3"));
}

// The rank with the largest share needs most.
TEST_F(Run, MemoryIsThatOfTheLargestShare) {
  auto config = small_gpt();
  const auto planned_for = [&](const std::vector<double>& shares) {
    config.parallel.shares = shares;
    const auto text = forecast_run(config, 2).full();
    return text.substr(text.find("\n    0  "));
  };
  config.train.batch = 8;
  const auto equal = planned_for({});
  EXPECT_EQ(planned_for({1, 1}), equal);
  EXPECT_EQ(planned_for({3, 1}), planned_for({1, 3}));
  EXPECT_NE(planned_for({3, 1}), equal);
}

}  // namespace
}  // namespace trireme
