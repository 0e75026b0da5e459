// metrics.jsonl: what its lines say, what a resumed run keeps of it, and what a full disk does to it.
#include "trireme/observe/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string header = R"({"format":"trireme-metrics","version":1})"
                           "\n";

class MetricsFileTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path); }

  std::string text() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<json> lines() const {
    std::istringstream all(text());
    std::vector<json> parsed;
    for (std::string line; std::getline(all, line);) parsed.push_back(json::parse(line));
    return parsed;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const auto& line : lines()) {
      if (line.contains("loss")) found.push_back(line["step"]);
    }
    return found;
  }
  void append(const std::string& tail) const { std::ofstream(path, std::ios::app) << tail; }

  const std::filesystem::path path = process_folder() + fmt::format("metrics-{}.jsonl", getpid());
};

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.steps = 10;
  report.loss = 2.5;
  report.grad_norm = 0.5;
  report.lr = 3e-4;
  report.step_s = 0.25;
  report.items_per_s = 4096;
  report.memory = {{"parameters", 1000}, {"gradients", 2000}};
  return report;
}

void write_steps(MetricsFile& file, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) file.step(report_of(step));
}

TEST_F(MetricsFileTest, FreshFileHoldsHeaderStepsAndEvents) {
  append("an older run's line\n");
  MetricsFile file(path);
  auto report = report_of(1);
  report.eval_loss = 2.75;
  report.eval_accuracy = 0.5;
  file.step(report);
  file.event("checkpoint", {{"path", "checkpoints/step-1"}});
  file.finish();

  EXPECT_THAT(text(), testing::StartsWith(header));
  auto all = lines();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_GE(all[1].at("elapsed_s").get<double>(), 0);
  all[1].erase("elapsed_s");
  EXPECT_EQ(all[1], json::parse(R"({"step":1,"steps":10,"loss":2.5,"grad_norm":0.5,"lr":0.0003,"tokens_per_s":4096.0,
      "step_s":0.25,"reduce_wait_s":0.0,"sent_bytes":0,"skipped":0,"memory":{"parameters":1000,"gradients":2000},
      "eval_loss":2.75,"eval_accuracy":0.5})"));
  EXPECT_EQ(all[2], json::parse(R"({"event":"checkpoint","step":1,"path":"checkpoints/step-1"})"));
}

TEST_F(MetricsFileTest, WhatACodecSparedAndHowStaleGradientsWere) {
  auto report = report_of(1);
  report.codec = CodecReport{4000, 1000, 0.0025, 0.5};
  report.staleness = {3, 2};
  MetricsFile(path).step(report);
  EXPECT_EQ(lines()[1]["codec"], json::parse(R"({"plain_bytes":4000,"sent_bytes":1000,"ratio":4.0,"seconds":0.0025,
      "residual_norm":0.5})"));
  EXPECT_EQ(lines()[1]["staleness"], json::parse("[3,2]"));
}

TEST_F(MetricsFileTest, ThroughputIsNamedAfterTheItems) {
  auto report = report_of(1);
  report.items = "samples";
  MetricsFile(path).step(report);
  EXPECT_EQ(lines()[1]["samples_per_s"], 4096.0);
}

TEST_F(MetricsFileTest, WhoWaitsForWhom) {
  auto report = report_of(1);
  report.busy_s = {0.0100004, 0.25};
  report.waits_for = AwaitedRank{1, 0.2399996};
  MetricsFile(path).step(report);
  EXPECT_EQ(lines()[1]["busy_s"], json({0.01, 0.25}));
  EXPECT_EQ(lines()[1]["waits_for"], json({{"rank", 1}, {"seconds", 0.24}}));
}

TEST_F(MetricsFileTest, LinesAreInTheFileAsSoonAsTheyAreWritten) {
  MetricsFile file(path);
  write_steps(file, 1, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(MetricsFileTest, NonFiniteNumbersAreNullAndNamed) {
  auto report = report_of(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = -std::numeric_limits<double>::infinity();
  MetricsFile file(path);
  file.step(report);
  file.event("spike", {{"loss", std::numeric_limits<double>::infinity()}});
  EXPECT_TRUE(lines()[1]["loss"].is_null());
  EXPECT_EQ(lines()[1]["nonfinite"], json({"loss", "grad_norm"}));
  EXPECT_EQ(lines()[2]["nonfinite"], json({"loss"}));
}

TEST_F(MetricsFileTest, TextThatIsNotUtf8IsMended) {
  MetricsFile file(path);
  file.event("warning", {{"text", "caf\xe9"}});
  EXPECT_EQ(lines()[1]["text"], "caf\xef\xbf\xbd");
}

TEST_F(MetricsFileTest, ResumeDropsLaterStepsAndTheirEvents) {
  {
    MetricsFile file(path);
    write_steps(file, 1, 4);
    file.event("checkpoint", {});
    write_steps(file, 5, 7);
    file.event("warning", {});
  }
  MetricsFile file(path, 4);
  file.event("resumed", {});
  write_steps(file, 5, 6);

  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(lines()[5], json::parse(R"({"event":"checkpoint","step":4})"));
  EXPECT_EQ(lines()[6], json::parse(R"({"event":"resumed","step":4})"));
  EXPECT_EQ(lines().size(), 9u);
}

TEST_F(MetricsFileTest, ResumeDropsATornLastLine) {
  {
    MetricsFile file(path);
    write_steps(file, 1, 3);
  }
  append(R"({"step":4,"los)");
  MetricsFile file(path, 5);
  write_steps(file, 6, 6);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2, 3, 6}));
}

TEST_F(MetricsFileTest, ResumeKeepsALineItCannotRead) {
  append(header + "a note that somebody typed\n" + R"({"step":"one"})" + "\n");
  const auto before = text();
  MetricsFile file(path, 1);
  EXPECT_EQ(text(), before);
}

TEST_F(MetricsFileTest, ResumeWithoutAFileOrWithATornHeaderStartsOne) {
  {
    MetricsFile file(path, 5);
  }
  EXPECT_EQ(text(), header);
  std::filesystem::resize_file(path, 7);
  {
    MetricsFile file(path, 5);
  }
  EXPECT_EQ(text(), header);
}

TEST_F(MetricsFileTest, ResumeRefusesAFileOfAnotherKindOrOfTheFutureAndLeavesItAlone) {
  const auto refusal_of = [&](const std::string& first_line) -> std::string {
    std::ofstream(path) << first_line << "\n{\"step\":7,\"loss\":1.5}\n";
    const auto before = text();
    try {
      MetricsFile file(path, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::refused);
      EXPECT_EQ(text(), before);
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_EQ(refusal_of(R"({"format":"trireme-metrics","version":1})"), "(accepted)");
  EXPECT_EQ(refusal_of(R"({"format":"trireme-metrics","version":1,"more":"fields"})"), "(accepted)");
  EXPECT_EQ(refusal_of(R"({"format":"trireme-metrics","version":2})"),
            path.string() +
                " was made by a newer Trireme: it has version 2, this program continues up to 1: use the "
                "newer program, or move the file away to go on without it");
  for (const char* other : {"step,loss", "[1]", "{}", R"({"format":"trireme-metrics"})", R"({"format":7,"version":1})",
                            R"({"format":"trireme-metrics","version":"1"})"}) {
    EXPECT_EQ(refusal_of(other), path.string() + R"( is no metrics file of a run: it does not begin with )" +
                                     header.substr(0, header.size() - 1) + ". Move it away to go on without it");
  }
}

TEST_F(MetricsFileTest, APathThatCannotBeOpenedIsAnError) {
  EXPECT_THROW(MetricsFile(path / "below-no-folder"), Error);
}

TEST_F(MetricsFileTest, AFullDiskCostsOneWarning) {
  testing::internal::CaptureStderr();
  MetricsFile file("/dev/full");
  write_steps(file, 1, 3);
  file.event("checkpoint", {});
  const auto notes = testing::internal::GetCapturedStderr();
  EXPECT_THAT(notes, testing::StartsWith("warning: writing /dev/full: "));
  EXPECT_THAT(notes, HasSubstr("the run goes on"));
  EXPECT_EQ(std::count(notes.begin(), notes.end(), '\n'), 1);
}

// A limit on the size of files fills up as a disk does: the first half of a line fits.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : before_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_;
  void (*before_handler_)(int);
};

TEST_F(MetricsFileTest, ALineThatFitsOnlyInPartIsTakenBackAndLaterOnesAreTriedAgain) {
  MetricsFile file(path);
  write_steps(file, 1, 1);
  testing::internal::CaptureStderr();
  {
    FileSizeLimit full(std::filesystem::file_size(path) + 20);
    write_steps(file, 2, 3);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("File too large"));
  write_steps(file, 4, 4);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 4}));
}

TEST_F(MetricsFileTest, AHeaderThatDidNotFitComesBeforeTheFirstLineThatDoes) {
  testing::internal::CaptureStderr();
  std::unique_ptr<MetricsFile> file;
  {
    FileSizeLimit full(5);
    file = std::make_unique<MetricsFile>(path);
    write_steps(*file, 1, 1);
  }
  testing::internal::GetCapturedStderr();
  write_steps(*file, 2, 2);
  EXPECT_THAT(text(), testing::StartsWith(header));
  EXPECT_EQ(steps(), (std::vector<int64_t>{2}));
}

}  // namespace
}  // namespace trireme
