#include "trireme/observe/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string header() { return fmt::format(R"({{"format":"trireme-metrics","version":{}}})", metrics_version) + "\n"; }

// How much of the file tells of steps up to `last_step`, in bytes. Steps only grow along a file.
uintmax_t bytes_up_to(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(path.string());
  uintmax_t kept = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {  // a line without its newline was torn by a kill
    const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = record.find("step");
    if (step != record.end() && step->is_number() && step->get<int64_t>() > last_step) break;
    kept += line.size() + 1;
  }
  return kept;
}

// Leaves in the file what a new run keeps of it; true when that is anything.
bool keep_up_to(const std::filesystem::path& path, int64_t resume_step) {
  if (!std::filesystem::is_regular_file(path)) return false;
  if (resume_step >= 0) check_metrics_file(path);
  const uintmax_t kept = resume_step < 0 ? 0 : bytes_up_to(path, resume_step);
  std::error_code error;
  std::filesystem::resize_file(path, kept, error);
  if (error) fail("{}: {}", path.string(), error.message());
  return kept > 0;
}

ordered_json by_owner(const std::vector<OwnerBytes>& memory) {
  ordered_json object = ordered_json::object();
  for (const auto& [owner, bytes] : memory) object[owner] = bytes;
  return object;
}

// Of a time by rank all digits would be half of the file.
double in_microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

void name_nonfinite(ordered_json& line) {
  ordered_json names = ordered_json::array();
  for (const auto& [key, value] : line.items()) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) names.push_back(key);
  }
  if (!names.empty()) line["nonfinite"] = std::move(names);
}

}  // namespace

void check_metrics_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || file.eof()) return;  // no file, or one that was torn before its first line ended
  const json first = json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool ours = first.is_object() && first.value("format", json()) == "trireme-metrics" &&
                    first.value("version", json()).is_number_integer();
  if (!ours) {
    refuse("{} is no metrics file of a run: it does not begin with {}. Move it away to go on without it", path.string(),
           header().substr(0, header().size() - 1));
  }
  const auto version = first.at("version").get<int64_t>();
  if (version > metrics_version) {
    refuse(
        "{} was made by a newer Trireme: it has version {}, this program continues up to {}: use the newer program, "
        "or move the file away to go on without it",
        path.string(), version, metrics_version);
  }
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resume_step)
    : has_header_(keep_up_to(path, resume_step)), file_(path), last_step_(std::max<int64_t>(resume_step, 0)) {
  if (!has_header_) has_header_ = file_.append(header());
}

void MetricsFile::step(const StepReport& report) {
  last_step_ = report.step;
  ordered_json line = {
      {"step", report.step},
      {"steps", report.steps},
      {"loss", report.loss},
      {"grad_norm", report.grad_norm},
      {"lr", report.lr},
      {report.items + "_per_s", report.items_per_s},
      {"step_s", report.step_s},
      {"elapsed_s", in_microseconds(static_cast<double>(monotonic_ns() - opened_ns_) * 1e-9)},
      {"reduce_wait_s", report.reduce_wait_s},
      {"sent_bytes", report.sent_bytes},
      {"skipped", report.skipped},
      {"memory", by_owner(report.memory)},
  };
  if (!report.host_memory.empty()) line["host_memory"] = by_owner(report.host_memory);
  if (!report.idle.empty()) {
    auto stages = ordered_json::array();
    for (const auto& idle : report.idle)
      stages.push_back({{"forward", idle.forward}, {"backward", idle.backward}, {"reduce", idle.reduce}});
    line["idle"] = std::move(stages);
  }
  if (!report.busy_s.empty()) {
    auto ranks = ordered_json::array();
    for (const double seconds : report.busy_s) ranks.push_back(in_microseconds(seconds));
    line["busy_s"] = std::move(ranks);
  }
  if (report.waits_for) {
    line["waits_for"] = {{"rank", report.waits_for->rank}, {"seconds", in_microseconds(report.waits_for->seconds)}};
  }
  if (report.codec) {
    const auto& codec = *report.codec;
    const auto ratio =
        static_cast<double>(codec.plain_bytes) / static_cast<double>(std::max<int64_t>(1, codec.sent_bytes));
    line["codec"] = {{"plain_bytes", codec.plain_bytes},
                     {"sent_bytes", codec.sent_bytes},
                     {"ratio", std::round(ratio * 1000) / 1000},
                     {"seconds", in_microseconds(codec.seconds)}};
    if (codec.residual_norm) line["codec"]["residual_norm"] = *codec.residual_norm;
  }
  if (report.batches) line["batches"] = *report.batches;
  if (!report.staleness.empty()) line["staleness"] = report.staleness;
  if (report.distillation) line["distillation"] = *report.distillation;
  if (report.eval_loss) line["eval_loss"] = *report.eval_loss;
  if (report.eval_accuracy) line["eval_accuracy"] = *report.eval_accuracy;
  write_line(std::move(line));
}

void MetricsFile::event(const std::string& name, const json& fields) {
  ordered_json line = {{"event", name}, {"step", last_step_}};
  for (const auto& [key, value] : fields.items()) line[key] = value;
  write_line(std::move(line));
}

void MetricsFile::write_line(ordered_json line) {
  name_nonfinite(line);
  // A file whose header met a full disk gets it before its first line that fits.
  if (!has_header_) has_header_ = file_.append(header());
  // Text that is not UTF-8 (a path, an error message) is mended, not thrown at the trainer.
  if (has_header_) file_.append(line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace trireme
