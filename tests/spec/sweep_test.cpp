#include "trireme/spec/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/data/temporary.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SweepGrid, IsTheProductOfItsAxes) {
  const auto points = grid_points({SweepAxis::grid("optimizer.lr=1e-3,1e-2"), SweepAxis::grid("model.layers=1,2,3")});
  ASSERT_EQ(points.size(), 6u);
  EXPECT_EQ(describe(points[0]), "optimizer.lr=1e-3 model.layers=1");
  EXPECT_EQ(describe(points[2]), "optimizer.lr=1e-3 model.layers=3");
  EXPECT_EQ(describe(points[3]), "optimizer.lr=1e-2 model.layers=1");
  EXPECT_THAT(SweepAxis::grid("parallel.cuts=[1,2],[2,3]").values, ElementsAre("[1,2]", "[2,3]"));
}

TEST(SweepGrid, RefusesWhatItCannotRead) {
  for (const char* text : {"optimizer.lr", "=1,2", "optimizer.lr="})
    EXPECT_THAT(refusal_of([&] { SweepAxis::grid(text); }), HasSubstr("write a key and what it takes")) << text;
  EXPECT_THAT(refusal_of([] { SweepAxis::grid("a=1,,2"); }), HasSubstr("a value is empty"));
  EXPECT_THAT(refusal_of([] { SweepAxis::grid("a=1,2,1"); }), HasSubstr("1 is there twice"));
}

TEST(SweepRandom, IsAFunctionOfSeedTrialAndKey) {
  const auto rate = SweepAxis::random("optimizer.lr=log:1e-4..1e-1"), layers = SweepAxis::random("model.layers=2..4");
  const auto few = random_points({rate}, 5, 7), many = random_points({rate, layers}, 50, 7);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i][0], many[i][0]);
  EXPECT_NE(random_points({rate}, 5, 8), few);
  // Pinned: a sweep that goes on tomorrow, or on another machine, must draw these.
  EXPECT_EQ(rate.draw(7, 0), "0.001133");
  EXPECT_EQ(layers.draw(7, 3), "2");
}

TEST(SweepRandom, StaysInItsRangeAndFillsIt) {
  const auto rate = SweepAxis::random("a=log:1e-4..1e-1"), part = SweepAxis::random("b=0.1..0.5");
  const auto whole = SweepAxis::random("c=2..4"), name = SweepAxis::random("d=adamw|sgd"),
             powers = SweepAxis::random("e=log:1..64");
  std::vector<double> rates, parts;
  std::set<std::string> wholes, names, counts;
  for (int64_t trial = 0; trial < 2000; ++trial) {
    rates.push_back(std::stod(rate.draw(1, trial)));
    parts.push_back(std::stod(part.draw(1, trial)));
    wholes.insert(whole.draw(1, trial));
    names.insert(name.draw(1, trial));
    counts.insert(powers.draw(1, trial));
  }
  std::sort(rates.begin(), rates.end());
  std::sort(parts.begin(), parts.end());
  EXPECT_GE(rates.front(), 1e-4);
  EXPECT_LE(rates.back(), 1e-1);
  EXPECT_NEAR(std::log10(rates[1000]), -2.5, 0.15);  // as many below the middle of the exponents as above
  EXPECT_GE(parts.front(), 0.1);
  EXPECT_LE(parts.back(), 0.5);
  EXPECT_NEAR(parts[1000], 0.3, 0.02);
  EXPECT_THAT(wholes, ElementsAre("2", "3", "4"));
  EXPECT_THAT(names, ElementsAre("adamw", "sgd"));
  EXPECT_TRUE(counts.contains("1") && counts.contains("64") && !counts.contains("65"));
}

TEST(SweepRandom, RefusesWhatItCannotRead) {
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=5..1"); }), HasSubstr("5 must be below 1"));
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=log:0..1"); }), HasSubstr("begins above 0"));
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=1..x"); }), HasSubstr("x is no number"));
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=1.."); }), HasSubstr("an empty bound is no number"));
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=log:1|2"); }), HasSubstr("log: is followed by low..high"));
  EXPECT_THAT(refusal_of([] { SweepAxis::random("a=x||y"); }), HasSubstr("a value is empty"));
}

}  // namespace
}  // namespace trireme
