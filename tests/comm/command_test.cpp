// Commands that the program runs, and processes that it knows by their environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "tests/support/child.h"
#include "trireme/base/error.h"
#include "trireme/comm/process.h"

namespace trireme {
namespace {

using testing::HasSubstr;

TEST(OutputOf, GivesWhatTheCommandWroteAndHowItEnded) {
  int status = -1;
  EXPECT_EQ(output_of({"printf", "%s", "hello"}, status), "hello");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(output_of({"seq", "100000"}, status).size(), 588'895U) << "more than a pipe holds";
  EXPECT_EQ(output_of({"sh", "-c", "exit 7"}, status), "");
  EXPECT_EQ(status, 7);
  output_of({"sh", "-c", "kill -9 $$"}, status);
  EXPECT_EQ(status, 128 + SIGKILL);
}

TEST(OutputOf, NoShellReadsTheWords) {
  int status = -1;
  const std::string words = "500mbit; touch injected && echo $HOME `id` $(id) 'x\" > y | z";
  EXPECT_EQ(output_of({"printf", "%s", words}, status), words);
}

TEST(OutputOf, ACommandThatIsNotThereIsAnError) {
  int status = -1;
  try {
    output_of({"/no/such/program", "1"}, status);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot start /no/such/program: No such file"));
  }
}

const Role sleeps("sleeps", [] {
  ::pause();
  return 0;
});

TEST(HasEnvironment, KnowsWhatAProcessWasStartedWith) {
  const Child child("sleeps", {{"TRIREME_MARK", "one=two"}});
  for (int tries = 0; tries < 1000 && !has_environment(child.pid(), "TRIREME_MARK", "one=two"); ++tries) usleep(5000);
  EXPECT_TRUE(has_environment(child.pid(), "TRIREME_MARK", "one=two"));
  EXPECT_FALSE(has_environment(child.pid(), "TRIREME_MARK", "one"));
  EXPECT_FALSE(has_environment(child.pid(), "MARK", "one=two"));
  EXPECT_FALSE(has_environment(getpid(), "TRIREME_MARK", "one=two"));
  EXPECT_FALSE(has_environment(0, "TRIREME_MARK", "one=two"));
}

}  // namespace
}  // namespace trireme
