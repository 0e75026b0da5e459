#include "trireme/observe/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <protozero/pbf_builder.hpp>

#include "trireme/base/error.h"
#include "trireme/observe/append_file.h"
#include "trireme/observe/tf_record.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
using protozero::pbf_builder;
using protozero::pbf_tag_type;

// The fields we write of tensorboard/compat/proto/event.proto and summary.proto.
enum class Event : pbf_tag_type { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 };
enum class Summary : pbf_tag_type { value = 1 };
enum class Value : pbf_tag_type { tag = 1, simple_value = 2 };
enum class SessionLog : pbf_tag_type { status = 1 };
constexpr int32_t session_start = 1;

constexpr double gib = 1024.0 * 1024 * 1024;
constexpr double longest_wait_s = 2;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard finds the file by "tfevents" in its name, and reads the files of a folder in the order of their times.
std::string event_file_name() {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) fail_errno("gethostname");
  return fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<int64_t>(unix_time()), host, getpid());
}

class TensorBoard final : public MetricSink {
 public:
  TensorBoard(const std::filesystem::path& folder, int64_t resume_step) : file_(folder / event_file_name()) {
    add_event(0, [](auto& event) { event.add_string(Event::file_version, "brain.Event:2"); });
    if (resume_step >= 0) {
      add_event(resume_step + 1, [](auto& event) {
        pbf_builder<SessionLog>(event, Event::session_log).add_enum(SessionLog::status, session_start);
      });
    }
    flush();
  }
  ~TensorBoard() override { flush(); }

  void step(const StepReport& report) override {
    add_event(report.step, [&](auto& event) { add_scalars(event, report); });
    // Not waiting for the next step when that will be too late keeps the promise without a thread of its own.
    const std::chrono::duration<double> waited = Clock::now() - flushed_at_;
    if (waited.count() + report.step_s >= longest_wait_s) flush();
  }

  // A checkpoint that is on disk should find the steps before it there too.
  void event(const std::string&, const nlohmann::json&) override { flush(); }

  void finish() override { flush(); }

 private:
  template <class Fill>
  void add_event(int64_t step, Fill fill) {
    std::string data;
    pbf_builder<Event> event(data);
    event.add_double(Event::wall_time, unix_time());
    event.add_int64(Event::step, step);
    fill(event);
    waiting_ += tf_record(data);
  }

  static void add_scalars(pbf_builder<Event>& event, const StepReport& report) {
    pbf_builder<Summary> summary(event, Event::summary);
    const auto scalar = [&](const std::string& tag, double number) {
      pbf_builder<Value> value(summary, Summary::value);
      value.add_string(Value::tag, tag);
      value.add_float(Value::simple_value, static_cast<float>(number));
    };
    scalar("loss_metrics/global_avg_loss", report.loss);
    scalar("grad_norm", report.grad_norm);
    scalar("lr", report.lr);
    scalar(fmt::format("throughput({})", throughput_word(report)), report.items_per_s);
    scalar("time_metrics/end_to_end(s)", report.step_s);
    for (const auto& [owner, bytes] : report.memory) {
      scalar(fmt::format("memory/{}_gib", owner), static_cast<double>(bytes) / gib);
    }
    for (const auto& [owner, bytes] : report.host_memory)
      scalar(fmt::format("host_memory/{}_gib", owner), static_cast<double>(bytes) / gib);
    if (report.distillation) scalar("distillation", *report.distillation);
    if (report.eval_loss) scalar("eval/loss", *report.eval_loss);
    if (report.eval_accuracy) scalar("eval/accuracy", *report.eval_accuracy);
  }

  void flush() {
    if (!waiting_.empty()) file_.append(waiting_);
    waiting_.clear();
    flushed_at_ = Clock::now();
  }

  AppendFile file_;
  std::string waiting_;  // whole records
  Clock::time_point flushed_at_;
};

}  // namespace

std::unique_ptr<MetricSink> make_tensorboard(const std::filesystem::path& folder, int64_t resume_step) {
  return std::make_unique<TensorBoard>(folder, resume_step);
}

bool tensorboard_built() { return true; }

}  // namespace trireme
