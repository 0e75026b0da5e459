// TensorBoard files: the framing against known vectors, and the events against a decoder of our own.
// tests/e2e/read_tensorboard.py reads them with TensorBoard itself.
#include "trireme/observe/tensorboard.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>

#include "tests/data/temporary.h"
#include "trireme/observe/tf_record.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TfRecord, HeaderIsTheOneThatEveryEventFileStartsWith) {
  // A first event of 24 bytes (wall_time and file_version), as TensorFlow itself frames it.
  const auto record = tf_record(std::string(24, 'x'));
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(record.size(), 8u + 4 + 24 + 4);
}

TEST(TfRecord, ChecksumOfTheDataIsMasked) {
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);  // as tensorboard.compat computes it
  EXPECT_EQ(tf_record("123456789").substr(21), "\xe5\xb0\x8a\xc7");
}

template <class Number>
Number number_at(std::string_view bytes) {
  Number number;
  EXPECT_GE(bytes.size(), sizeof number);
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// The payloads of a file's records, each with both checksums checked.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> records;
  for (std::string_view rest = all; !rest.empty();) {
    const auto length = number_at<uint64_t>(rest);
    EXPECT_EQ(number_at<uint32_t>(rest.substr(8)), masked_crc32c(rest.substr(0, 8)));
    const auto data = rest.substr(12, length);
    EXPECT_EQ(number_at<uint32_t>(rest.substr(12 + length)), masked_crc32c(data));
    records.emplace_back(data);
    rest.remove_prefix(16 + length);
  }
  return records;
}

// One protobuf message: field number -> raw values (varints as 8 bytes), in order.
std::multimap<int, std::string> fields_of(std::string_view message) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(0));
      message.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  std::multimap<int, std::string> fields;
  while (!message.empty()) {
    const uint64_t key = varint();
    std::string value;
    if (key % 8 == 0) {
      const uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), sizeof number);
    } else {
      const uint64_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : varint();
      value = message.substr(0, size);
      message.remove_prefix(size);
    }
    fields.emplace(static_cast<int>(key / 8), value);
  }
  return fields;
}

std::string field(std::string_view message, int number) {
  const auto fields = fields_of(message);
  const auto found = fields.find(number);
  return found == fields.end() ? "" : found->second;
}

int64_t step_of(const std::string& event) { return number_at<int64_t>(field(event, 2)); }

std::map<std::string, float> scalars_of(const std::string& event) {
  std::map<std::string, float> scalars;
  for (const auto& [number, value] : fields_of(field(event, 5))) {
    scalars[field(value, 1)] = number_at<float>(field(value, 2));
  }
  return scalars;
}

class TensorBoardTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::filesystem::path event_file() const { return std::filesystem::directory_iterator(folder)->path(); }

  const std::filesystem::path folder = process_folder() + fmt::format("tensorboard-{}", getpid());
};

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.steps = 10;
  report.loss = 2.5;
  report.grad_norm = 0.5;
  report.lr = 0.125;
  report.step_s = 0.25;
  report.items_per_s = 4096;
  report.memory = {{"parameters", int64_t{1} << 30}, {"optimizer", int64_t{1} << 31}};
  return report;
}

TEST_F(TensorBoardTest, WritesTheTagsOfTorchtitan) {
  const auto sink = make_tensorboard(folder);
  if (!sink) GTEST_SKIP() << "built without protozero";
  auto report = report_of(300);
  report.eval_loss = 2.75;
  report.eval_accuracy = 0.5;
  sink->step(report);
  report = report_of(301);
  report.items = "samples";
  sink->step(report);
  sink->finish();

  const auto name = event_file().filename().string();
  EXPECT_THAT(name, testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.[0-9]+"));
  const auto events = records_of(event_file());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(field(events[0], 3), "brain.Event:2");
  EXPECT_GT(number_at<double>(field(events[0], 1)), 1.6e9);
  EXPECT_EQ(step_of(events[1]), 300);
  EXPECT_THAT(scalars_of(events[1]),
              ElementsAre(Pair("eval/accuracy", 0.5f), Pair("eval/loss", 2.75f), Pair("grad_norm", 0.5f),
                          Pair("loss_metrics/global_avg_loss", 2.5f), Pair("lr", 0.125f),
                          Pair("memory/optimizer_gib", 2.f), Pair("memory/parameters_gib", 1.f),
                          Pair("throughput(tps)", 4096.f), Pair("time_metrics/end_to_end(s)", 0.25f)));
  EXPECT_EQ(scalars_of(events[2]).count("throughput(sps)"), 1u);
  EXPECT_EQ(scalars_of(events[2]).count("eval/loss"), 0u);
}

TEST_F(TensorBoardTest, QuickStepsWaitAndSlowStepsDoNot) {
  const auto sink = make_tensorboard(folder);
  if (!sink) GTEST_SKIP() << "built without protozero";
  auto quick = report_of(1);
  quick.step_s = 0;
  sink->step(quick);
  EXPECT_EQ(records_of(event_file()).size(), 1u);  // the file's version is there from the start
  sink->event("checkpoint", {});
  EXPECT_EQ(records_of(event_file()).size(), 2u);
  auto slow = report_of(2);
  slow.step_s = 3;
  sink->step(slow);
  EXPECT_EQ(records_of(event_file()).size(), 3u);
}

TEST_F(TensorBoardTest, AResumedRunAsksForLaterStepsToBeForgotten) {
  const auto sink = make_tensorboard(folder, 4);
  if (!sink) GTEST_SKIP() << "built without protozero";
  const auto events = records_of(event_file());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(step_of(events[1]), 5);
  EXPECT_EQ(number_at<uint64_t>(field(field(events[1], 7), 1)), 1u);  // session_log.status = START
}

}  // namespace
}  // namespace trireme
