#include "trireme/observe/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// ---- the words ----------------------------------------------------------------------------------------------------

struct Field {
  std::string word, value;
  int weight = 0;      // a terminal that is too narrow for all fields loses the lightest first
  bool alarm = false;  // shown in red

  std::string text() const { return word + " " + value; }
};

std::string decimals(double number, int digits) {
  const bool too_small = number != 0 && std::abs(number) < std::pow(10, -digits);
  return too_small ? fmt::format("{:.2e}", number) : fixed(number, digits);
}

// 12345.6 -> "12,346"; a slow model's few items a second keep a decimal.
std::string per_second(double number) {
  if (!(std::abs(number) >= 100)) return fixed(number, 1);
  auto digits = fmt::format("{:.0f}", number);
  for (auto place = static_cast<int>(digits.size()) - 3; place > 0; place -= 3) digits.insert(place, ",");
  return digits;
}

int64_t total_bytes(const std::vector<OwnerBytes>& memory) {
  int64_t total = 0;
  for (const auto& share : memory) total += share.bytes;
  return total;
}

std::vector<Field> fields_of(const StepReport& report, double average_step_s) {
  std::vector<Field> fields;
  fields.push_back({"step", fmt::format("{}/{}", report.step, report.steps), 9});
  fields.push_back({"loss", decimals(report.loss, 4), 8, !std::isfinite(report.loss)});
  if (report.eval_loss) fields.push_back({"eval_loss", decimals(*report.eval_loss, 4), 6});
  if (report.eval_accuracy) fields.push_back({"accuracy", decimals(100 * *report.eval_accuracy, 2) + " %", 6});
  fields.push_back({"grad_norm", decimals(report.grad_norm, 2), 3, !std::isfinite(report.grad_norm)});
  if (!report.memory.empty()) {
    fields.push_back({"memory", fmt::format("{:.2f} GB", static_cast<double>(total_bytes(report.memory)) / 1e9), 2});
  }
  fields.push_back({throughput_word(report), per_second(report.items_per_s), 4});
  const int64_t left = report.steps - report.step;
  if (left > 0) fields.push_back({"eta", human_seconds(average_step_s * static_cast<double>(left)), 7});
  if (report.skipped > 0) fields.push_back({"skipped", std::to_string(report.skipped), 5, true});
  return fields;
}

size_t width_of(const std::vector<Field>& fields) {
  size_t width = 0;
  for (const auto& field : fields) width += field.text().size() + 2;
  return width < 2 ? 0 : width - 2;
}

// ---- the live line ------------------------------------------------------------------------------------------------

constexpr auto redraw_interval = std::chrono::milliseconds(100);
constexpr size_t widest_bar = 24, narrowest_bar = 8;

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

bool can_redraw() {
  const char* terminal = std::getenv("TERM");
  // Under mpirun a rank writes to a pipe; the launcher says when that ends at a terminal.
  return (isatty(STDERR_FILENO) || is_set("TRIREME_TERMINAL")) && !(terminal && std::string(terminal) == "dumb");
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar(int64_t step, int64_t steps, size_t width) {
  const size_t inside = width - 2;
  const double share = steps > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(steps), 0.0, 1.0) : 0;
  std::string marks(static_cast<size_t>(share * static_cast<double>(inside)), '=');
  if (marks.size() < inside) marks += '>';
  marks.resize(inside, ' ');
  return "[" + marks + "]";
}

std::string live_text(const StepReport& report, double average_step_s) {
  // The last column stays free: a character there makes some terminals wrap, and a wrapped line cannot be redrawn.
  const size_t columns = terminal_columns() - 1;
  auto fields = fields_of(report, average_step_s);
  while (width_of(fields) > columns) {
    fields.erase(std::min_element(fields.begin(), fields.end(), [](auto& a, auto& b) { return a.weight < b.weight; }));
  }

  const bool colour = !is_set("NO_COLOR");  // https://no-color.org
  const auto painted = [&](const char* code, const std::string& text) {
    return colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  };
  std::string text;
  for (const auto& field : fields) {
    if (!text.empty()) text += "  ";
    text += painted("2", field.word) + " " + (field.alarm ? painted("31", field.value) : field.value);
  }
  const size_t room = columns - width_of(fields);
  if (room >= narrowest_bar + 2) {
    text += "  " + painted("32", bar(report.step, report.steps, std::min(room - 2, widest_bar)));
  }
  return text;
}

// The terminal has one last line, and log:: clears it through a plain function: hence one of these for the process.
class LiveLine {
 public:
  bool is_due() {
    std::lock_guard lock(mutex_);
    return Clock::now() - touched_at_ >= redraw_interval;
  }

  void draw(const std::string& text) {
    std::lock_guard lock(mutex_);
    print("\r" + text + "\x1b[K");
    shown_ = true;
    touched_at_ = Clock::now();
  }

  // Counts as a redraw, so that the line does not come back before the note, of whatever thread, has been written.
  void clear() {
    std::lock_guard lock(mutex_);
    if (shown_) print("\r\x1b[K");
    shown_ = false;
    touched_at_ = Clock::now();
  }

  void leave() {
    std::lock_guard lock(mutex_);
    if (shown_) print("\n");
    shown_ = false;
  }

 private:
  std::mutex mutex_;
  bool shown_ = false;
  Clock::time_point touched_at_;
};

// Never destroyed: threads may log while the process ends.
LiveLine& live_line() {
  static LiveLine* one = new LiveLine;
  return *one;
}

}  // namespace

Progress::Progress(int64_t every, bool quiet)
    : every_(std::max<int64_t>(every, 1)), quiet_(quiet), live_(!quiet && can_redraw()) {
  if (live_) log::set_before_line([] { live_line().clear(); });
}

void Progress::step(const StepReport& report) {
  const bool ends = !last_ || report.step >= report.steps;
  const auto evaluated = report.eval_loss || !last_ ? report : *last_;
  last_ = report;
  last_->eval_loss = evaluated.eval_loss;
  last_->eval_accuracy = evaluated.eval_accuracy;
  last_is_written_ = false;

  // The first step also pays for warming up, so the second takes its place; then a mean over the last ten or so.
  ++reports_;
  average_step_s_ += (report.step_s - average_step_s_) / static_cast<double>(std::clamp<int64_t>(reports_ - 1, 1, 10));

  if (live_ && (ends || live_line().is_due())) live_line().draw(live_text(*last_, average_step_s_));
  if (ends || report.step % every_ == 0) write_plain();
}

void Progress::write_plain() {
  std::string line;
  for (const auto& field : fields_of(*last_, average_step_s_)) line += (line.empty() ? "" : "  ") + field.text();
  if (reports_ == 1 && !last_->memory.empty()) {
    std::string owners;
    for (const auto& [owner, bytes] : last_->memory) {
      owners += fmt::format("{}{} {}", owners.empty() ? "" : ", ", owner, human_bytes(static_cast<double>(bytes)));
    }
    line += "\nmemory: " + owners;
  }
  if (live_ || quiet_) {
    log::note(line);
  } else {
    log::info("{}", line);
  }
  last_is_written_ = true;
}

void Progress::finish() {
  if (last_ && !last_is_written_) write_plain();
  if (live_) {
    log::set_before_line(nullptr);
    if (last_) live_line().draw(live_text(*last_, average_step_s_));
    live_line().leave();
  }
  live_ = false;
  last_.reset();
}

}  // namespace trireme
