// The picture of a step: read back as the boxes that a person would see.
#include "trireme/observe/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Box {
  double x, width;
  std::string title;

  bool operator==(const Box&) const = default;
};

std::vector<Box> boxes(const std::string& svg) {
  static const std::regex pattern(
      "<rect x=\"([0-9.]+)\" y=\"[0-9]+\" width=\"([0-9.]+)\"[^>]*><title>([^,]*), [^<]*</title>");
  std::vector<Box> found;
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern), end; at != end; ++at) {
    found.push_back({std::stod((*at)[1]), std::stod((*at)[2]), (*at)[3]});
  }
  return found;
}

TraceSpan pass(const char* name, int64_t index, int64_t begin_ms, int64_t end_ms, int64_t step = 7,
               TraceTrack track = TraceTrack::compute) {
  return {.track = track,
          .name = name,
          .index = index,
          .step = step,
          .begin_ns = begin_ms * 1'000'000,
          .end_ns = end_ms * 1'000'000};
}

TEST(Timeline, BoxesAreInProportionToTime) {
  // The second rank's clock is 100 ms behind.
  const auto svg = timeline_svg({{"rank 0", {pass("forward", 0, 100, 110), pass("backward", 0, 180, 200)}, 0},
                                 {"rank 1", {pass("forward", 0, 20, 40)}, 100'000'000}});
  const auto found = boxes(svg);
  ASSERT_EQ(found.size(), 3u);
  const double left = found[0].x, whole = found[1].x + found[1].width - left;
  EXPECT_NEAR(found[0].width, 0.1 * whole, 0.1);
  EXPECT_NEAR(found[1].x - left, 0.8 * whole, 0.1);
  EXPECT_NEAR(found[1].width, 0.2 * whole, 0.1);
  EXPECT_NEAR(found[2].x - left, 0.2 * whole, 0.1);
  EXPECT_NEAR(found[2].width, 0.2 * whole, 0.1);
  EXPECT_EQ(found[0].title, "forward 0");
  EXPECT_EQ(found[1].title, "backward 0");
  EXPECT_THAT(svg, HasSubstr(">rank 1</text>"));
  EXPECT_THAT(svg, HasSubstr(">100.0 ms</text>"));
}

TEST(Timeline, ShowsTheLastStepAndOnlyComputing) {
  const auto found = boxes(timeline_svg(
      {{"rank 0",
        {pass("forward", 0, 0, 10, 6), pass("forward", 1, 20, 30, 7),
         pass("send", 1, 30, 31, 7, TraceTrack::communication), pass("backward", -1, 31, 40, 7, TraceTrack::waiting)},
        0}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].title, "forward 1");
}

TEST(Timeline, ACardsOwnTimesGoBeforeThoseOfItsHost) {
  const auto found = boxes(timeline_svg(
      {{"rank 0",
        {pass("forward", 0, 0, 1), pass("forward", 1, 1, 2), pass("forward", 0, 5, 50, 7, TraceTrack::card),
         pass("copy out", 0, 50, 60, 7, TraceTrack::copies)},
        0}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GT(found[0].width, 1000);
}

TEST(Timeline, NothingRecordedIsAnEmptyPicture) {
  const auto svg = timeline_svg({{"rank 0", {}, 0}});
  EXPECT_THAT(boxes(svg), ElementsAre());
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace trireme
