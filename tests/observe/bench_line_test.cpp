#include "trireme/observe/bench_line.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

BenchLine beside(std::vector<double> ours, std::vector<double> peer) {
  BenchLine line;
  line.bench = "train";
  line.bench_case = "mlp, 1 rank";
  line.ours = std::move(ours);
  line.peer = std::move(peer);
  line.peer_name = "PyTorch eager";
  return line;
}

TEST(BenchLine, RatioIsOfMediansAndSpreadOfPairs) {
  const auto line = beside({1, 2, 4}, {2, 6, 4});
  EXPECT_DOUBLE_EQ(*line.ratio(), 2);
  EXPECT_DOUBLE_EQ(line.spread(), 1);  // pairs: 2, 3, 1
  auto larger = line;
  larger.smaller_is_better = false;
  EXPECT_DOUBLE_EQ(*larger.ratio(), 0.5);
}

TEST(BenchLine, WithoutAPeerThereIsNoRatio) {
  for (const bool smaller : {true, false}) {
    auto line = beside({1, 2}, {});
    line.smaller_is_better = smaller;
    line.floor = 0.5;
    EXPECT_FALSE(line.ratio());
    EXPECT_EQ(line.brief().find("ratio"), std::string::npos) << line.brief();
    EXPECT_FALSE(line.json().contains("ratio"));
    EXPECT_FALSE(line.json().contains("spread"));
    EXPECT_FALSE(line.json().contains("peer"));
    EXPECT_DOUBLE_EQ(line.json()["floor"].get<double>(), 0.5);
  }
}

TEST(BenchLine, APeerThatIsMissingIsNamedWithItsRemedy) {
  auto line = beside({1}, {});
  line.peer_name = "SZ3";
  line.missing = "pip install pysz";
  EXPECT_NE(line.brief().find("SZ3 not measured: pip install pysz"), std::string::npos) << line.brief();
  EXPECT_EQ(line.json()["missing"], "pip install pysz");
  EXPECT_FALSE(line.json().contains("ratio"));
}

TEST(BenchLine, OfSeveralPeersTheBestIsMarked) {
  std::vector<BenchLine> lines{beside({1, 1}, {3, 3}), beside({1, 1}, {2, 2}), beside({1, 1}, {})};
  mark_best_peer(lines);
  EXPECT_FALSE(lines[0].best_peer);
  EXPECT_TRUE(lines[1].best_peer);
  EXPECT_FALSE(lines[2].best_peer);
  for (auto& line : lines) {
    line.best_peer = false;
    line.smaller_is_better = false;
  }
  mark_best_peer(lines);
  EXPECT_TRUE(lines[0].best_peer);
  std::vector<BenchLine> alone{beside({1}, {})};
  mark_best_peer(alone);
  EXPECT_FALSE(alone[0].best_peer);
}

TEST(BenchLine, TableHasARowForEachPeer) {
  std::vector<BenchLine> lines{beside({0.03, 0.03}, {0.06, 0.06}), beside({0.03, 0.03}, {0.045, 0.048}),
                               beside({2, 2}, {})};
  lines[0].matrices = "oneDNN 3.12.0, 260 GFLOP/s a core";
  lines[0].peer_matrices = "MKL 2024.2, 118 GFLOP/s a core";
  lines[1].peer_name = "PyTorch compiled";
  lines[2].missing = "failed: no g++";
  mark_best_peer(lines);
  EXPECT_EQ(
      markdown_table(lines),
      "| case | ours | our matrix products | peer | its time | its matrix products | times faster (± half the range) "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n"
      "| mlp, 1 rank | 30 ms | oneDNN 3.12.0, 260 GFLOP/s a core | PyTorch eager | 60 ms | MKL 2024.2, 118 GFLOP/s a "
      "core | 2.00 ± 0.00 |\n"
      "| mlp, 1 rank | 30 ms | – | PyTorch compiled | 46.5 ms | – | **1.55 ± 0.05** |\n"
      "| mlp, 1 rank | 2 s | – | PyTorch eager | failed: no g++ | – | – |\n");
}

TEST(BenchLine, SidesTakeTurnsAtBeingFirst) {
  std::string order;
  const std::vector<std::function<void()>> sides{[&] { order += 'a'; }, [&] { order += 'b'; }, [&] { order += 'c'; }};
  for (int repeat = 0; repeat < 3; ++repeat) alternate(repeat, sides);
  EXPECT_EQ(order, "abccbaabc");
}

}  // namespace
}  // namespace trireme
