// The timeline of a step as a picture: a row for each rank, a box for each pass with the number of its microbatch, and
// what lies between them left empty.
#pragma once

#include <string>
#include <vector>

#include "trireme/observe/trace.h"

namespace trireme {

struct RankTimeline {
  std::string name;
  std::vector<TraceSpan> spans;
  int64_t offset_ns = 0;  // added to this rank's clock it gives one that all ranks share
};

// The last step that the spans know, as an SVG.
std::string timeline_svg(const std::vector<RankTimeline>& ranks);

}  // namespace trireme
