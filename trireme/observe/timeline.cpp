#include "trireme/observe/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace trireme {

namespace {

constexpr double left = 210, width = 1150, row = 30, gap = 8, top = 46;

const char* color_of(std::string_view what) {
  if (what == "forward" || what == "evaluate") return "#5b8ff9";
  if (what == "backward") return "#61ddaa";
  if (what == "weights") return "#2fa57a";
  if (what == "optimize") return "#f6bd16";
  if (what == "norm" || what == "decide") return "#c2a5cf";
  return "#a0a7b4";
}

}  // namespace

std::string timeline_svg(const std::vector<RankTimeline>& ranks) {
  int64_t step = -1, begin = INT64_MAX, end = 0;
  // Where cards compute, their own times are shown, not those at which their work was given to them.
  auto track = TraceTrack::compute;
  for (const auto& rank : ranks) {
    for (const auto& span : rank.spans) {
      step = std::max(step, span.step);
      if (span.track == TraceTrack::card) track = TraceTrack::card;
    }
  }
  const auto shown = [&](const TraceSpan& span) { return span.track == track && span.step == step; };
  for (const auto& rank : ranks) {
    for (const auto& span : rank.spans) {
      if (!shown(span)) continue;
      begin = std::min(begin, span.begin_ns + rank.offset_ns);
      end = std::max(end, span.end_ns + rank.offset_ns);
    }
  }
  const double length = std::max<double>(1, static_cast<double>(end - begin));
  const double height = top + static_cast<double>(ranks.size()) * (row + gap) + 34;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      left + width + 20, height);
  double legend = left;
  for (const char* what : {"forward", "backward", "weights", "norm", "optimize"}) {
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"14\" width=\"14\" height=\"14\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"25\">{}</text>\n",
        legend, color_of(what), legend + 19, what);
    legend += 100;
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double y = top + static_cast<double>(r) * (row + gap);
    svg += fmt::format(
        "<text x=\"10\" y=\"{:.0f}\">{}</text><rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" "
        "height=\"{:.0f}\" fill=\"#f0f1f4\"/>\n",
        y + 20, ranks[r].name, left, y, width, row);
    for (const auto& span : ranks[r].spans) {
      if (!shown(span)) continue;
      const std::string_view what = span.name.text;
      const double x = left + width * static_cast<double>(span.begin_ns + ranks[r].offset_ns - begin) / length;
      const double w = std::max(0.5, width * static_cast<double>(span.end_ns - span.begin_ns) / length);
      auto title = span.index < 0 ? std::string(what) : fmt::format("{} {}", what, span.index);
      if (span.chunk > 0) title += fmt::format(" of chunk {}", span.chunk);
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" fill-opacity=\"{:.2f}\" "
          "stroke=\"white\" stroke-width=\"0.5\"><title>{}, {:.2f} ms</title></rect>\n",
          x, y, w, row, color_of(what), std::max(0.3, 1 - 0.4 * span.chunk), title,
          static_cast<double>(span.end_ns - span.begin_ns) * 1e-6);
      const bool pass = what == "forward" || what == "backward" || what == "weights";
      if (pass && w > 14) {
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", x + w / 2, y + 20,
                           span.index);
      }
    }
  }
  svg += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\">0</text><text x=\"{:.0f}\" y=\"{:.0f}\" "
      "text-anchor=\"end\">{:.1f} ms</text>\n</svg>\n",
      left, height - 12, left + width, height - 12, length * 1e-6);
  return svg;
}

}  // namespace trireme
