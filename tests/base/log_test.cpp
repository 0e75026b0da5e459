#include "trireme/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <vector>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class LogTest : public testing::Test {
 protected:
  LogTest() {
    auto name = process_folder() + "trireme-log-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    log::set_file(folder_ / "drop");  // what earlier tests have said
    log::set_file({});
    testing::internal::CaptureStderr();
  }
  ~LogTest() override {
    log::set_file({});
    log::set_rank(0);
    testing::internal::GetCapturedStderr();
    fs::remove_all(folder_);
  }

  // The file's lines without their times, each of which must be one.
  std::vector<std::string> lines(const std::string& file = "log.txt") {
    static const std::regex stamped(R"((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z)  (.*))");
    std::vector<std::string> found;
    std::ifstream stream(folder_ / file);
    for (std::string line; std::getline(stream, line);) {
      std::smatch parts;
      EXPECT_TRUE(std::regex_match(line, parts, stamped)) << line;
      found.push_back(parts.size() > 2 ? parts[2].str() : line);
    }
    return found;
  }

  fs::path folder_;
};

TEST_F(LogTest, HoldsWhatIsSaidWithItsTime) {
  log::set_file(folder_ / "log.txt");
  log::info("step {}", 1);
  log::warn("a table:\n  a row");
  log::set_rank(2);
  log::info("not said by others than rank 0");
  log::error("late");
  EXPECT_THAT(lines(), ElementsAre("step 1", "warning: a table:", "  a row", "error: rank 2: late"));
}

TEST_F(LogTest, BeginsWithWhatWasSaidBeforeThereWasAFile) {
  log::info("early");
  log::note("for the file alone");
  log::set_file(folder_ / "log.txt");
  log::info("then");
  EXPECT_THAT(lines(), ElementsAre("early", "for the file alone", "then"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "early\nthen\n");
  testing::internal::CaptureStderr();
}

TEST_F(LogTest, GoesOnInAFileThatIsThere) {
  log::set_file(folder_ / "log.txt");
  log::info("first run");
  log::end(143);
  log::set_file(folder_ / "log.txt");
  log::info("second run");
  log::end(0);
  log::end(1);  // there is no file any more
  EXPECT_THAT(lines(),
              ElementsAre("first run", "ended with exit status 143", "second run", "ended with exit status 0"));
}

TEST_F(LogTest, MakesNoFileForNobody) {
  log::set_file(folder_ / "log.txt");
  log::set_file({});
  EXPECT_FALSE(fs::exists(folder_ / "log.txt"));
}

// A launcher and its ranks write to one file.
TEST_F(LogTest, TakesWholeLinesOfSeveralProcesses) {
  log::set_file(folder_ / "log.txt");
  const std::string text(200, 'x');
  const pid_t other = ::fork();
  for (int i = 0; i < 500; ++i) log::note(text);
  if (other == 0) ::_exit(0);
  ::waitpid(other, nullptr, 0);
  EXPECT_THAT(lines(), testing::AllOf(testing::SizeIs(1000), testing::Each(text)));
}

TEST_F(LogTest, SaysOnceThatItCannotWrite) {
  log::set_file(folder_ / "missing/log.txt");
  log::info("one");
  log::info("two");
  const auto shown = testing::internal::GetCapturedStderr();
  testing::internal::CaptureStderr();
  EXPECT_THAT(shown, HasSubstr("one\nwarning: opening "));
  EXPECT_THAT(shown, testing::EndsWith("two\n"));
  EXPECT_EQ(shown.find("warning: "), shown.rfind("warning: "));
}

}  // namespace
}  // namespace trireme
