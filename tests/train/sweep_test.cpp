// What a sweep makes of its results: order, winner, and sweep.jsonl. That it runs, stops and resumes is e2e/sweep.py's.
#include "trireme/train/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/temporary.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Status = PointResult::Status;

SweepResult four_points(const fs::path& folder) {
  SweepResult result;
  result.folder = folder;
  result.axes = {SweepAxis::grid("optimizer.lr=0.1,0.2,0.3,0.4")};
  result.header = {
      {"best", "eval_loss"}, {"axes", {"optimizer.lr=0.1,0.2,0.3,0.4"}}, {"seed", 1}, {"config", "a: 1\n"}};
  for (const auto& settings : grid_points(result.axes)) {
    auto& point = result.points.emplace_back();
    point.number = static_cast<int64_t>(result.points.size());
    point.settings = settings;
  }
  auto& points = result.points;
  points[0] = {1, points[0].settings, Status::done, 1.0, 2.0, 0.25, 3.0, "", ""};
  points[1] = {2, points[1].settings, Status::failed, {}, {}, {}, 1.0, "", "no <data>"};
  points[2] = {3, points[2].settings, Status::done, 3.0, 1.5, 0.125, 3.0, "point-3/checkpoints/step-1", ""};
  return result;
}

std::vector<int64_t> order(const SweepResult& result) {
  std::vector<int64_t> numbers;
  for (const auto* point : result.sorted()) numbers.push_back(point->number);
  return numbers;
}

TEST(SweepResult, SortsByWhatIsCompared) {
  auto result = four_points("somewhere");
  EXPECT_THAT(order(result), ElementsAre(3, 1, 2, 4));
  EXPECT_EQ(result.winner()->number, 3);
  result.best = "loss";
  EXPECT_THAT(order(result), ElementsAre(1, 3, 2, 4));
  result.best = "eval_accuracy";  // more is better
  EXPECT_THAT(order(result), ElementsAre(1, 3, 2, 4));
  result.points[0].eval_accuracy.reset();  // not finite: never the best
  EXPECT_THAT(order(result), ElementsAre(3, 1, 2, 4));
  EXPECT_EQ(result.exit_status(), 0);
  result.stopped_by = 2;
  EXPECT_EQ(result.exit_status(), 130);
  result = four_points("somewhere");
  result.points.erase(result.points.begin() + 2);
  result.points.erase(result.points.begin());
  EXPECT_EQ(result.winner(), nullptr);
  EXPECT_EQ(result.exit_status(), 1);
}

TEST(SweepResult, TellsAllOfItOnAPage) {
  const auto page = four_points("somewhere").page();
  EXPECT_THAT(page, HasSubstr("point 2 failed: no &lt;data&gt;"));
  EXPECT_THAT(page, HasSubstr("eval_loss by optimizer.lr"));
  size_t dots = 0;
  for (size_t at = page.find("<circle"); at != std::string::npos; at = page.find("<circle", at + 1)) ++dots;
  EXPECT_EQ(dots, 2u);
}

TEST(SweepResult, ReadsBackWhatIsDone) {
  TemporaryFolder folder;
  fs::create_directories(folder / "sweep");
  const auto written = four_points(folder / "sweep");
  written.write();
  auto found = four_points(folder / "sweep");
  for (auto& point : found.points) point = {point.number, point.settings, Status::waiting, {}, {}, {}, 0, "", ""};
  found.read();
  // A point that failed is tried again.
  EXPECT_EQ(found.points[1].status, Status::waiting);
  for (const size_t i : {0u, 2u}) EXPECT_EQ(found.points[i].json(), written.points[i].json());
  EXPECT_EQ(found.points[3].status, Status::waiting);

  std::ofstream(folder / "sweep/sweep.jsonl", std::ios::app) << R"({"point":4,"settings":{"optimizer.lr":"0.4"},"sta)";
  found.read();  // a torn line is no line
  EXPECT_EQ(found.points[3].status, Status::waiting);
  found.header["config"] = "a: 2\n";
  EXPECT_THAT(refusal_of([&] { found.read(); }), HasSubstr("is of another sweep: its config differ"));
  std::ofstream(folder / "sweep/sweep.jsonl") << R"({"format":"trireme-sweep","version":2})" << "\n";
  EXPECT_THAT(refusal_of([&] { found.read(); }), HasSubstr("was made by a newer Trireme"));
  std::ofstream(folder / "sweep/sweep.jsonl") << "words\n";
  EXPECT_THAT(refusal_of([&] { found.read(); }), HasSubstr("is damaged, or not of a sweep"));
}

SweepOptions small_sweep(const fs::path& folder) {
  SweepOptions options;
  options.overrides = {"model.kind=mlp", "data.kind=synthetic", "data.samples=40"};
  options.grid = {"optimizer.lr=0.1,0.2"};
  options.folder = folder;
  return options;
}

TEST(Sweep, RefusesBeforeAnythingStarts) {
  TemporaryFolder folder;
  const auto said = [&](const std::function<void(SweepOptions&)>& change) {
    auto options = small_sweep(folder / "sweep");
    change(options);
    const auto what = refusal_of([&] { sweep(options); });
    EXPECT_FALSE(fs::exists(folder / "sweep")) << what;
    return what;
  };
  EXPECT_THAT(said([](auto& o) { o.grid = {"optimizer.rate=1,2"}; }), HasSubstr("unknown key optimizer.rate"));
  EXPECT_THAT(said([](auto& o) { o.grid = {"optimizer.lr=1,-2"}; }), HasSubstr("optimizer.lr = -2 must be above 0"));
  EXPECT_THAT(said([](auto& o) { o.grid = {"optimizer.lr=1,x"}; }), HasSubstr("optimizer.lr"));
  EXPECT_THAT(said([](auto& o) { o.overrides.push_back("model.widht=2"); }), HasSubstr("did you mean model.width?"));
  EXPECT_THAT(said([](auto& o) { o.grid.clear(); }), HasSubstr("--grid, or --random"));
  EXPECT_THAT(said([](auto& o) { o.random = {"model.width=2..8"}; }), HasSubstr("one of the two"));
  EXPECT_THAT(said([](auto& o) { o.trials = 3; }), HasSubstr("--trials belongs to --random"));
  EXPECT_THAT(said([](auto& o) { o.random.swap(o.grid); }), HasSubstr("--random needs --trials"));
  EXPECT_THAT(said([](auto& o) { o.grid.push_back("optimizer.lr=3,4"); }), HasSubstr("optimizer.lr is an axis twice"));
  EXPECT_THAT(said([](auto& o) { o.grid = {"run_dir=a,b"}; }), HasSubstr("run_dir cannot be an axis"));
  EXPECT_THAT(said([](auto& o) { o.ranks_per_run = 2; }), HasSubstr("--ranks-per-run 2 is more than --ranks 1"));
  EXPECT_THAT(said([](auto& o) { o.resume = true; }), HasSubstr("there is no sweep to go on with"));
  EXPECT_THAT(said([](auto& o) { o.overrides.push_back("data.validation=0"); }), HasSubstr("needs held-out samples"));
  EXPECT_THAT(said([](auto& o) { o.overrides = {"model.kind=mlp", "data.kind=text"}; }),
              HasSubstr("must be synthetic"));
  EXPECT_THAT(said([](auto& o) {
                o.overrides = {"data.kind=synthetic"};
                o.best = "eval_accuracy";
              }),
              HasSubstr("is of classifiers"));
}

}  // namespace
}  // namespace trireme
