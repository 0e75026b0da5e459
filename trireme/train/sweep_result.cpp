#include "trireme/train/sweep_result.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/observe/chart.h"

namespace trireme {

using nlohmann::ordered_json;
using Status = PointResult::Status;

namespace {

constexpr int64_t sweep_version = 1;

const char* status_name(Status status) {
  return status == Status::done ? "done" : status == Status::failed ? "failed" : "not run";
}

ordered_json settings_json(const SweepPoint& point) {
  ordered_json object = ordered_json::object();
  for (const auto& [key, value] : point) object[key] = value;
  return object;
}

std::optional<double> number_in(const ordered_json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::vector<std::vector<std::string>> table_of(const SweepResult& result) {
  std::vector<std::vector<std::string>> rows(1, {"point"});
  for (const auto& axis : result.axes) rows[0].push_back(axis.key);
  const bool judged = std::any_of(result.points.begin(), result.points.end(),
                                  [](const auto& point) { return point.eval_accuracy.has_value(); });
  for (const char* heading : {"loss", "eval_loss"}) rows[0].emplace_back(heading);
  if (judged) rows[0].emplace_back("eval_accuracy");
  for (const char* heading : {"time", "status"}) rows[0].emplace_back(heading);
  const auto shown = [](const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "-"; };
  for (const auto* point : result.sorted()) {
    auto& row = rows.emplace_back(1, std::to_string(point->number));
    for (const auto& [key, value] : point->settings) row.push_back(value);
    row.push_back(shown(point->loss));
    row.push_back(shown(point->eval_loss));
    if (judged) row.push_back(shown(point->eval_accuracy));
    row.push_back(point->seconds > 0 ? human_seconds(point->seconds) : "-");
    row.emplace_back(point == result.winner() ? "best" : status_name(point->status));
  }
  return rows;
}

std::string value_of(const PointResult& point, const std::string& key) {
  for (const auto& [name, value] : point.settings) {
    if (name == key) return value;
  }
  return "";
}

std::optional<double> as_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' ? std::optional(value) : std::nullopt;
}

// What is compared against the values of a key: numbers where they all are, otherwise their names in order.
Chart chart_of(const SweepResult& result, const std::string& key) {
  Chart chart{result.best + " by " + key, key, result.best, false, false, {}, /*from_zero=*/false, {}};
  chart.curves = {{"points", {}, true, false, {}}, {"the best", {}, true, false, {}}};
  std::vector<std::string> names;
  double least = 1e300, most = -1e300;
  bool numbers = true;
  for (const auto& point : result.points) {
    const auto text = value_of(point, key);
    if (std::find(names.begin(), names.end(), text) == names.end()) names.push_back(text);
    const auto number = as_number(text);
    numbers = numbers && number;
    least = std::min(least, number.value_or(0));
    most = std::max(most, number.value_or(0));
  }
  chart.log_x = numbers && least > 0 && most >= 20 * least;
  if (!numbers) chart.x_names = names;
  for (const auto& point : result.points) {
    const auto objective = point.objective(result.best);
    if (!objective) continue;
    const auto text = value_of(point, key);
    const auto place = static_cast<double>(std::find(names.begin(), names.end(), text) - names.begin());
    auto& curve = chart.curves[&point == result.winner() ? 1 : 0];
    curve.points.emplace_back(numbers ? *as_number(text) : place, *objective);
    curve.labels.push_back(fmt::format("point {}, {}: {:.4f}", point.number, describe(point.settings), *objective));
  }
  return chart;
}

}  // namespace

std::optional<double> PointResult::objective(const std::string& name) const {
  if (status != Status::done) return std::nullopt;
  return name == "eval_loss" ? eval_loss : name == "eval_accuracy" ? eval_accuracy : loss;
}

ordered_json PointResult::json() const {
  ordered_json line{{"point", number}, {"settings", settings_json(settings)}, {"status", status_name(status)}};
  if (status == Status::failed) line["error"] = error;
  if (status != Status::done) return line;
  const auto value = [](const std::optional<double>& number) {
    return number ? ordered_json(*number) : ordered_json();
  };
  line["loss"] = value(loss);
  line["eval_loss"] = value(eval_loss);
  if (eval_accuracy) line["eval_accuracy"] = *eval_accuracy;
  line["seconds"] = seconds;
  line["checkpoint"] = checkpoint.empty() ? ordered_json() : ordered_json(checkpoint);
  return line;
}

std::vector<const PointResult*> SweepResult::sorted() const {
  std::vector<const PointResult*> order;
  for (const auto& point : points) order.push_back(&point);
  const double sign = best == "eval_accuracy" ? -1 : 1;
  const auto rank = [&](const PointResult* point) {
    const auto objective = point->objective(best);
    const int group = objective ? 0 : point->status == Status::done ? 1 : point->status == Status::failed ? 2 : 3;
    return std::tuple(group, objective ? sign * *objective : 0.0, point->number);
  };
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return rank(a) < rank(b); });
  return order;
}

const PointResult* SweepResult::winner() const {
  const auto order = sorted();
  return !order.empty() && order.front()->objective(best) ? order.front() : nullptr;
}

int64_t SweepResult::count(Status status) const {
  return std::count_if(points.begin(), points.end(), [&](const auto& point) { return point.status == status; });
}

std::string SweepResult::brief() const {
  const auto rows = table_of(*this);
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      size_t wide = 0;
      for (const auto& other : rows) wide = std::max(wide, other[c].size());
      text += fmt::format("{}{:>{}}", c == 0 ? "" : "  ", row[c], wide);
    }
    text += "\n";
  }
  for (const auto& point : points) {
    if (point.status == Status::failed) text += fmt::format("point {} failed: {}\n", point.number, point.error);
  }
  if (stopped_by != 0)
    text += fmt::format("stopped with {} to go: go on with --resume\n", counted(count(Status::waiting), "point"));
  if (const auto* first = winner()) {
    text += fmt::format("best by {}: point {}, {}\n", best, first->number, describe(first->settings));
    text += first->checkpoint.empty()
                ? fmt::format("its checkpoint was not saved: see {}\n",
                              (folder / fmt::format("point-{}", first->number) / "output.txt").string())
                : fmt::format("checkpoint: {}\n", first->checkpoint);
  }
  return text + fmt::format("page: {}\n", (folder / "sweep.html").string());
}

ordered_json SweepResult::json() const {
  ordered_json lines = ordered_json::array();
  for (const auto* point : sorted()) lines.push_back(point->json());
  const auto* first = winner();
  return {{"folder", folder.string()},
          {"objective", best},
          {"best", first ? ordered_json(first->number) : ordered_json()},
          {"checkpoint", first && !first->checkpoint.empty() ? ordered_json(first->checkpoint) : ordered_json()},
          {"done", count(Status::done)},
          {"failed", count(Status::failed)},
          {"waiting", count(Status::waiting)},
          {"stopped_by", stopped_by},
          {"points", std::move(lines)}};
}

std::string SweepResult::page() const {
  std::string body = fmt::format("<h1>A sweep of {}</h1>\n<table>\n", counted(std::ssize(points), "point"));
  const auto rows = table_of(*this);
  for (size_t r = 0; r < rows.size(); ++r) {
    body += "<tr>";
    for (const auto& cell : rows[r]) body += fmt::format("<{0}>{1}</{0}>", r == 0 ? "th" : "td", escape_html(cell));
    body += "</tr>\n";
  }
  body += "</table>\n";
  for (const auto& axis : axes) body += chart_of(*this, axis.key).svg();
  for (const auto& point : points) {
    if (point.status == Status::failed)
      body += fmt::format("<p>point {} failed: {}</p>\n", point.number, escape_html(point.error));
  }
  return html_page("Trireme sweep", body);
}

int SweepResult::exit_status() const {
  if (stopped_by != 0) return 128 + stopped_by;
  return count(Status::done) > 0 ? 0 : 1;
}

void SweepResult::read() {
  const auto path = folder / "sweep.jsonl";
  std::ifstream stream(path);
  std::string text;
  if (!std::getline(stream, text)) refuse("there is no sweep to go on with: {} is missing", path.string());
  const auto first = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!first.is_object() || first.value("format", "") != "trireme-sweep" || !first["version"].is_number_integer())
    refuse("{} is damaged, or not of a sweep", path.string());
  if (first["version"].get<int64_t>() > sweep_version) {
    refuse("{} was made by a newer Trireme: it has version {}, this program reads up to {}: use the newer program",
           path.string(), first["version"].get<int64_t>(), sweep_version);
  }
  for (const auto& [key, value] : header.items()) {
    if (first.value(key, ordered_json()) != value)
      refuse("{} is of another sweep: its {} differ; repeat that command, or name another --out", folder.string(), key);
  }
  while (std::getline(stream, text)) {
    const auto line = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    const auto number = line.is_object() ? line.value("point", int64_t{0}) : 0;
    if (number < 1 || number > static_cast<int64_t>(points.size())) continue;
    auto& point = points[static_cast<size_t>(number - 1)];
    if (line.value("status", "") != "done" || line.value("settings", ordered_json()) != settings_json(point.settings))
      continue;
    point.status = Status::done;
    point.loss = number_in(line, "loss");
    point.eval_loss = number_in(line, "eval_loss");
    point.eval_accuracy = number_in(line, "eval_accuracy");
    point.seconds = number_in(line, "seconds").value_or(0);
    if (line.contains("checkpoint") && line["checkpoint"].is_string()) point.checkpoint = line["checkpoint"];
  }
}

void SweepResult::write() const {
  ordered_json first{{"format", "trireme-sweep"}, {"version", sweep_version}};
  first.update(header);
  const auto line = [](const ordered_json& json) {
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  };
  auto text = line(first);
  for (const auto& point : points) {
    if (point.status != Status::waiting) text += line(point.json());
  }
  write_atomically(folder / "sweep.jsonl", text);
}

}  // namespace trireme
