#include "trireme/fleet/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "trireme/base/units.h"
#include "trireme/observe/chart.h"

namespace trireme::fleet {

namespace {

constexpr double hour_s = 3600;

struct Column {
  std::string heading;
  std::string (*value)(const ReportEntry&);
};

std::string hours(double seconds) { return fmt::format("{:.2f}", seconds / hour_s); }

std::vector<Column> columns_of(const std::vector<ReportEntry>& entries) {
  std::vector<Column> columns;
  const auto any = [&](auto wanted) { return std::any_of(entries.begin(), entries.end(), wanted); };
  columns.push_back({"policy", [](const ReportEntry& e) { return e.result.policy; }});
  if (any([](const ReportEntry& e) { return e.jobs_per_hour > 0; })) {
    columns.push_back({"jobs/h", [](const ReportEntry& e) { return fmt::format("{:.2f}", e.jobs_per_hour); }});
  }
  columns.push_back({"mean h", [](const ReportEntry& e) { return hours(e.result.mean_jct_s); }});
  columns.push_back({"median h", [](const ReportEntry& e) { return hours(e.result.median_jct_s); }});
  columns.push_back({"p99 h", [](const ReportEntry& e) { return hours(e.result.p99_jct_s); }});
  columns.push_back({"makespan h", [](const ReportEntry& e) { return hours(e.result.end_s); }});
  columns.push_back(
      {"worst FTF", [](const ReportEntry& e) { return fmt::format("{:.2f}", e.result.worst_unfairness); }});
  columns.push_back({"used", [](const ReportEntry& e) { return fmt::format("{:.1f} %", 100 * e.result.utilisation); }});
  if (any([](const ReportEntry& e) { return e.result.cost > 0; })) {
    columns.push_back({"cost", [](const ReportEntry& e) { return fmt::format("{:.2f}", e.result.cost); }});
  }
  columns.push_back({"preemptions", [](const ReportEntry& e) { return std::to_string(e.result.preemptions); }});
  if (any([](const ReportEntry& e) { return e.result.with_deadline > 0; })) {
    columns.push_back({"late", [](const ReportEntry& e) {
                         return fmt::format("{} of {}", e.result.missed_deadlines, e.result.with_deadline);
                       }});
  }
  if (any([](const ReportEntry& e) { return e.result.ledger.device_losses > 0; })) {
    columns.push_back({"failures", [](const ReportEntry& e) { return std::to_string(e.result.ledger.device_losses); }});
  }
  if (any([](const ReportEntry& e) { return e.result.rejected + e.result.dropped > 0; })) {
    columns.push_back(
        {"not run", [](const ReportEntry& e) { return std::to_string(e.result.rejected + e.result.dropped); }});
  }
  columns.push_back(
      {"solver", [](const ReportEntry& e) { return fmt::format("{:>9}", human_seconds(e.result.ledger.solver_s)); }});
  return columns;
}

std::string html_table(const std::vector<ReportEntry>& entries) {
  const auto columns = columns_of(entries);
  std::string out = "<table>\n<tr>";
  for (const auto& column : columns) out += "<th>" + column.heading + "</th>";
  out += "</tr>\n";
  for (const auto& entry : entries) {
    out += "<tr>";
    for (const auto& column : columns) out += "<td>" + escape_html(column.value(entry)) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string label_of(const ReportEntry& entry) {
  return entry.jobs_per_hour > 0 ? fmt::format("{} at {:.2f}/h", entry.result.policy, entry.jobs_per_hour)
                                 : entry.result.policy;
}

// At most so many points of a curve; the rest is between them.
constexpr size_t most_points = 800;

std::string distributions(const std::vector<ReportEntry>& entries) {
  Chart chart{"Completion times", "hours", "part of the jobs", true, false, {}};
  for (const auto& entry : entries) {
    std::vector<double> times;
    for (int64_t id : entry.result.counted) {
      times.push_back(std::max(1.0, entry.result.ledger.jobs[static_cast<size_t>(id)].completion_s()) / hour_s);
    }
    std::sort(times.begin(), times.end());
    Curve curve{label_of(entry), {}};
    const size_t stride = times.size() / most_points + 1;
    for (size_t i = 0; i < times.size(); i += stride) {
      curve.points.emplace_back(times[i], static_cast<double>(i + 1) / static_cast<double>(times.size()));
    }
    if (!times.empty()) curve.points.emplace_back(times.back(), 1);
    chart.curves.push_back(std::move(curve));
  }
  return chart.svg();
}

std::string allocation_over_time(const ReportEntry& entry, const Cluster& cluster) {
  const auto& samples = entry.result.ledger.samples;
  Chart chart{"Devices in use: " + label_of(entry), "hours", "devices, jobs", false, false, {}};
  for (const auto& type : cluster.types) chart.curves.push_back({type.name, {}, false, true});
  chart.curves.push_back({"jobs waiting", {}, false, true});
  const size_t stride = samples.size() / most_points + 1;
  for (size_t begin = 0; begin < samples.size(); begin += stride) {
    const size_t end = std::min(begin + stride, samples.size());
    const auto count = static_cast<double>(end - begin);
    for (size_t curve = 0; curve < chart.curves.size(); ++curve) {
      double sum = 0;
      for (size_t i = begin; i < end; ++i) {
        sum += curve < cluster.types.size() ? samples[i].busy[curve] : samples[i].jobs - samples[i].running;
      }
      chart.curves[curve].points.emplace_back(samples[begin].at_s / hour_s, sum / count);
    }
  }
  return chart.svg();
}

std::string who_ran_where(const ReportEntry& entry, const Cluster& cluster) {
  const auto& ledger = entry.result.ledger;
  constexpr size_t most_rows = 72;
  BarChart chart{"Who ran where: " + label_of(entry), "hours", ledger.keep_spans.first / hour_s,
                 ledger.keep_spans.second / hour_s,   {},      {}};
  for (size_t device = 0; device < std::min(cluster.devices.size(), most_rows); ++device) {
    chart.rows.push_back(
        fmt::format("{} {}", cluster.types[static_cast<size_t>(cluster.devices[device].type)].name, device));
  }
  std::vector<int> last_bar(chart.rows.size(), -1);
  std::vector<std::pair<int64_t, int64_t>> last_jobs(chart.rows.size(), {-1, -1});
  for (const auto& span : ledger.spans) {
    const auto row = static_cast<size_t>(span.device);
    if (row >= chart.rows.size()) continue;
    const double begin = span.begin_s / hour_s, end = span.end_s / hour_s;
    if (last_bar[row] >= 0 && last_jobs[row] == std::pair(span.job, span.partner)) {
      auto& bar = chart.bars[static_cast<size_t>(last_bar[row])];
      if (begin - bar.end < 0.01) {  // a lease that was extended
        bar.end = end;
        continue;
      }
    }
    const auto& name = ledger.jobs[static_cast<size_t>(span.job)].name;
    const auto partner = span.partner < 0 ? "" : " and " + ledger.jobs[static_cast<size_t>(span.partner)].name;
    last_bar[row] = static_cast<int>(chart.bars.size());
    last_jobs[row] = {span.job, span.partner};
    chart.bars.push_back({span.device, begin, end, static_cast<int>(span.job % 12), "job " + name + partner});
  }
  const auto note = cluster.devices.size() > most_rows
                        ? fmt::format("<p>The first {} of {} devices.</p>\n", most_rows, cluster.devices.size())
                        : std::string();
  return chart.svg() + note;
}

// How many times shorter than under the first policy, load by load.
std::string gains(const Chart& times) {
  if (times.curves.size() < 2) return "";
  Chart chart{"Gain over " + times.curves[0].name, times.x_label, "times shorter", false, false, {}};
  const auto& first = times.curves[0].points;
  for (size_t i = 1; i < times.curves.size(); ++i) {
    Curve curve{times.curves[i].name, {}};
    for (size_t place = 0; place < std::min(first.size(), times.curves[i].points.size()); ++place) {
      curve.points.emplace_back(first[place].first, first[place].second / times.curves[i].points[place].second);
    }
    chart.curves.push_back(std::move(curve));
  }
  return chart.svg();
}

// Generated workloads of several loads make a curve; a trace shows each job by how full the cluster was when it came.
std::string load_against_completion(const std::vector<ReportEntry>& entries) {
  Chart chart{"Load against mean completion time", "jobs per hour", "hours", false, false, {}};
  for (const auto& entry : entries) {
    if (entry.jobs_per_hour <= 0) continue;
    auto place = std::find_if(chart.curves.begin(), chart.curves.end(),
                              [&](const Curve& curve) { return curve.name == entry.result.policy; });
    if (place == chart.curves.end()) place = chart.curves.insert(place, {entry.result.policy, {}});
    place->points.emplace_back(entry.jobs_per_hour, entry.result.mean_jct_s / hour_s);
  }
  for (auto& curve : chart.curves) std::sort(curve.points.begin(), curve.points.end());
  if (!chart.curves.empty() && chart.curves[0].points.size() > 1) return chart.svg() + gains(chart);
  chart = {"Load at arrival against completion time", "devices wanted when the job came", "hours", false, true, {}};
  for (const auto& entry : entries) {
    Curve curve{label_of(entry), {}, true};
    const size_t stride = entry.result.counted.size() / most_points + 1;
    for (size_t i = 0; i < entry.result.counted.size(); i += stride) {
      const auto& job = entry.result.ledger.jobs[static_cast<size_t>(entry.result.counted[i])];
      curve.points.emplace_back(job.demand_at_arrival, std::max(1.0, job.completion_s()) / hour_s);
    }
    chart.curves.push_back(std::move(curve));
  }
  return chart.svg();
}

}  // namespace

std::string report_table(const std::vector<ReportEntry>& entries) {
  std::vector<std::vector<std::string>> rows(entries.size() + 1);
  for (const auto& column : columns_of(entries)) {
    rows[0].push_back(column.heading);
    for (size_t i = 0; i < entries.size(); ++i) rows[i + 1].push_back(column.value(entries[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      size_t wide = 0;
      for (const auto& other : rows) wide = std::max(wide, other[c].size());
      out += c == 0 ? fmt::format("{:<{}}", row[c], wide) : fmt::format("  {:>{}}", row[c], wide);
    }
    out += "\n";
  }
  return out;
}

std::string report_page(const ReportSubject& subject, const Cluster& cluster, const std::vector<ReportEntry>& entries) {
  std::string out = "<h1>A fleet in simulation</h1>\n";
  out += fmt::format(
      "<dl><dt>jobs</dt><dd>{}</dd><dt>cluster</dt><dd>{}</dd><dt>throughputs</dt><dd>{}</dd><dt>rules</dt><dd>{}</"
      "dd></dl>\n",
      escape_html(subject.workload), escape_html(subject.cluster_text), escape_html(subject.throughputs),
      escape_html(subject.mode));
  out += html_table(entries);
  out +=
      "<p>Times are from arrival to completion. FTF: completion time over that on an equal share of the cluster.</p>\n";
  out += "<h2>Completion times</h2>\n" + distributions(entries);
  out += "<h2>Load</h2>\n" + load_against_completion(entries);
  out += "<h2>Devices over time</h2>\n";
  for (const auto& entry : entries) out += allocation_over_time(entry, cluster);
  out += "<h2>Who ran where</h2>\n";
  for (const auto& entry : entries) out += who_ran_where(entry, cluster);
  return html_page("Trireme fleet", out);
}

}  // namespace trireme::fleet
