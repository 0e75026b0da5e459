#include "trireme/bench/bubbles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/log.h"
#include "trireme/base/statistics.h"

namespace trireme {

namespace {

// What the runs of one schedule have shown, a value a repeat.
struct Seen {
  std::vector<double> bubbles, floors;        // of the work
  std::vector<double> idle, unequal, step_s;  // per cent of the step; seconds
  nlohmann::json by_step = nlohmann::json::array();

  void add(const Measured& run) {
    const double waited = median(run.idle), floor = median(run.unequal);
    bubbles.push_back(waited / (1 - waited));
    floors.push_back(floor / (1 - floor));
    idle.push_back(100 * waited);
    unequal.push_back(100 * floor);
    step_s.push_back(run.step_s);
    by_step.push_back({{"idle", run.idle}, {"unequal", run.unequal}});
  }

  std::string brief() const {
    return fmt::format("idle {:.1f} % ({:.1f}), unequal stages alone {:.1f} %, of a step of {:.3f} s", median(idle),
                       fmt::join(idle, ", "), median(unequal), median(step_s));
  }
};

}  // namespace

std::vector<BenchLine> measure_bubbles(int stages, int repeats,
                                       const std::function<Measured(const std::vector<std::string>& settings)>& run) {
  const int more = 2 * stages - 1;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"zero-bubble", {"parallel.schedule=zero-bubble"}},
      {fmt::format("zero-bubble, {} in flight", more),
       {"parallel.schedule=zero-bubble", fmt::format("parallel.in_flight={}", more)}},
      {"zero-bubble-v", {"parallel.schedule=zero-bubble-v"}},
      {"interleaved", {"parallel.schedule=interleaved"}},
      {"pipedream", {"parallel.schedule=pipedream"}},
      {"pipedream-2bw", {"parallel.schedule=pipedream-2bw"}},
  };
  Seen usual;
  std::vector<Seen> seen(cases.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    log::info("idle stages: repeat {} of {}", repeat + 1, repeats);
    std::vector<std::function<void()>> sides{[&] { usual.add(run({"parallel.schedule=1f1b"})); }};
    for (size_t i = 0; i < cases.size(); ++i) sides.push_back([&, i] { seen[i].add(run(cases[i].second)); });
    alternate(repeat, sides);
  }
  std::vector<BenchLine> lines;
  for (size_t i = 0; i < cases.size(); ++i) {
    auto& line = lines.emplace_back();
    line.bench = "pipeline";
    line.bench_case = cases[i].first;
    line.unit = "of the work";
    line.ours = seen[i].bubbles;
    line.peer = usual.bubbles;
    line.peer_name = "our 1f1b";
    line.floor = median(seen[i].floors);
    line.settings = {{"settings", cases[i].second},        {"idle_percent", seen[i].idle},
                     {"unequal_percent", seen[i].unequal}, {"step_s", seen[i].step_s},
                     {"by_step", seen[i].by_step},         {"1f1b_by_step", usual.by_step}};
    line.remark = fmt::format("{}; 1f1b {}", seen[i].brief(), usual.brief());
  }
  return lines;
}

}  // namespace trireme
