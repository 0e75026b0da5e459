#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/fleet/jobs.h"
#include "trireme/fleet/text_file.h"

namespace trireme::fleet {

namespace {

constexpr size_t most_columns = 10;
constexpr double most_steps = 1e15;  // beyond, a double no longer counts by ones

struct Line {
  const std::string& file;
  int64_t number;
  std::array<std::string_view, most_columns> columns;
  size_t count = 0;

  std::string place() const { return fmt::format("{}:{}", file, number); }

  // Nine tabs at most are looked for; what lies beyond is counted.
  void split(std::string_view text) {
    while (true) {
      const size_t tab = text.find('\t');
      if (count < most_columns) columns[count] = text.substr(0, tab);
      ++count;
      if (tab == std::string_view::npos) return;
      text.remove_prefix(tab + 1);
    }
  }

  double number_in(size_t column, const char* what) const {
    const auto text = columns[column];
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
      refuse("{}: {} (column {}) must be a number, not \"{}\"", place(), what, column + 1, text.substr(0, 60));
    }
    return value;
  }

  int whole_in(size_t column, const char* what) const {
    const double value = number_in(column, what);
    if (value != std::floor(value) || value < 1 || value > 1e6) {
      refuse("{}: {} (column {}) must be a whole number of at least 1, not {}", place(), what, column + 1, value);
    }
    return static_cast<int>(value);
  }
};

Job read_line(const Line& line) {
  const bool old_layout = line.count == 7;
  if (line.count != 7 && line.count != 10) {
    refuse("{}: a job has ten columns between tabs, or seven in the old layout, and this line has {}", line.place(),
           line.count);
  }
  Job job;
  job.type = line.columns[0];
  if (job.type.empty()) refuse("{}: the job's type (column 1) is missing", line.place());
  const size_t steps_column = old_layout ? 4 : 5;
  job.steps = line.number_in(steps_column, "total steps");
  if (!(job.steps > 0) || job.steps > most_steps) {
    refuse("{}: total steps (column {}) must be above 0 and at most {}, not {}", line.place(), steps_column + 1,
           most_steps, job.steps);
  }
  job.scale = line.whole_in(6, "scale factor");
  const size_t arrival_column = old_layout ? 5 : 9;
  job.arrival_s = line.number_in(arrival_column, "arrival time");
  if (job.arrival_s < 0) {
    refuse("{}: arrival time (column {}) must be at least 0, not {}", line.place(), arrival_column + 1, job.arrival_s);
  }
  if (!old_layout) {
    job.weight = line.number_in(7, "priority weight");
    if (!(job.weight > 0)) refuse("{}: priority weight (column 8) must be above 0, not {}", line.place(), job.weight);
    const double slo = line.number_in(8, "SLO factor");
    job.slo = slo > 0 ? slo : 0;
  }
  job.place = line.place();
  return job;
}

}  // namespace

std::vector<Job> read_trace(const std::filesystem::path& path) {
  const std::string whole = read_text_file(path);
  std::string_view text = whole;
  const std::string name = path.string();
  std::vector<Job> jobs;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    auto line_text = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line_text.empty() && line_text.back() == '\r') line_text.remove_suffix(1);
    if (line_text.empty()) continue;
    Line line{name, number, {}, 0};
    line.split(line_text);
    Job job = read_line(line);
    job.id = static_cast<int64_t>(jobs.size());
    job.name = std::to_string(job.id);
    if (!jobs.empty() && job.arrival_s < jobs.back().arrival_s) {
      refuse("{}: arrives at {} s, before the job above it ({} s): sort the trace by arrival", job.place, job.arrival_s,
             jobs.back().arrival_s);
    }
    jobs.push_back(std::move(job));
  }
  if (jobs.empty()) refuse("{}: there is no job in it", name);
  return jobs;
}

}  // namespace trireme::fleet
