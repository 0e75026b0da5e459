#include "trireme/base/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/data/temporary.h"
#include "trireme/base/files.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;

class PathsTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(PathsTest, ATildeIsTheHomeFolder) {
  const std::string before = std::getenv("HOME") ? std::getenv("HOME") : "";
  ::setenv("HOME", "/home/ann", 1);
  EXPECT_EQ(expand_home("~"), "/home/ann");
  EXPECT_EQ(expand_home("~/runs/a"), "/home/ann/runs/a");
  for (const char* path : {"", "runs/~", "/~/a", "a~", "./~x"}) EXPECT_EQ(expand_home(path), path);
  EXPECT_EQ(expand_home("~root/x"), "/root/x");
  EXPECT_EQ(
      refusal_of([] { expand_home("~nobodyofthatname/x"); }),
      "~nobodyofthatname/x: there is no user nobodyofthatname (write ./~nobodyofthatname/x for a name that begins "
      "with ~)");
  ::setenv("HOME", before.c_str(), 1);
}

TEST_F(PathsTest, ALinkThatDanglesIsToldWithItsTarget) {
  fs::create_symlink("/nowhere/at/all", folder_ / "link");
  fs::create_directory(folder_ / "real");
  fs::create_symlink(folder_ / "real", folder_ / "good");
  const auto link = (folder_ / "link").string();
  const auto told = link + " is a dangling link: it points to /nowhere/at/all, which does not exist";
  EXPECT_EQ(dangling_link(folder_ / "link"), told);
  EXPECT_EQ(dangling_link(folder_ / "link" / "run"), told);
  EXPECT_EQ(dangling_link(folder_ / "good" / "run"), "");
  EXPECT_EQ(dangling_link(folder_ / "nothing"), "");
  EXPECT_EQ(refusal_of([&] { refuse_missing(folder_ / "link", "file"); }), told);
  EXPECT_THAT(refusal_of([&] { refuse_missing(folder_ / "nothing", "file"); }), EndsWith("there is no such file"));
  EXPECT_THAT(refusal_of([&] { make_folder(folder_ / "link" / "run"); }), HasSubstr(told));
  EXPECT_EQ(refusal_of([&] { MappedFile(folder_ / "link"); }), told);
}

TEST_F(PathsTest, AFolderThatCannotBeMadeIsRefusedAndNothingIsMade) {
  check_output_folder(folder_ / "a" / "b" / "c");
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THAT(refusal_of([&] { check_output_folder(folder_ / "file"); }), EndsWith("file is no folder"));
  EXPECT_THAT(refusal_of([&] { check_output_folder(folder_ / "file" / "b"); }), HasSubstr("b cannot be made: "));
  fs::create_symlink("/nowhere", folder_ / "link");
  EXPECT_THAT(refusal_of([&] { check_output_folder(folder_ / "link" / "b"); }), HasSubstr("is a dangling link"));
  EXPECT_THAT(refusal_of([&] { check_output_folder("/proc/self/x"); }), HasSubstr("cannot be written"));
}

TEST_F(PathsTest, ANewFolderMayBeEmptyAndNothingElse) {
  check_new_folder(folder_ / "new");
  fs::create_directory(folder_ / "empty");
  check_new_folder(folder_ / "empty");
  fs::create_directories(folder_ / "full" / "inside");
  EXPECT_THAT(refusal_of([&] { check_new_folder(folder_ / "full"); }), EndsWith("name a folder that does not"));
}

TEST_F(PathsTest, TheFolderOfAnOutputFileIsMadeOrItsOptionRefused) {
  prepare_output_file("--report", folder_ / "deep" / "er" / "page.html");
  EXPECT_TRUE(fs::is_directory(folder_ / "deep" / "er"));
  EXPECT_THAT(refusal_of([&] { prepare_output_file("--report", folder_ / "deep"); }),
              testing::AllOf(HasSubstr("--report: "), EndsWith("is a folder: name a file")));
  EXPECT_THAT(refusal_of([&] { prepare_output_file("--plot", "/proc/self/page.html"); }), HasSubstr("--plot: "));
}

TEST_F(PathsTest, TextIsReadOrRefusedBeforeItIsRead) {
  const auto read = [&](const fs::path& path) { return read_input_text(path, "a configuration file", 1000); };
  std::ofstream(folder_ / "good") << "train: {}\n";
  std::ofstream(folder_ / "empty");
  EXPECT_EQ(read(folder_ / "good"), "train: {}\n");
  EXPECT_EQ(read(folder_ / "empty"), "");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of([&] { read(folder_ / "pipe"); }), EndsWith("pipe: this is a pipe, not a configuration file"));
  EXPECT_EQ(refusal_of([&] { read("/dev/zero"); }), "/dev/zero: this is a device, not a configuration file");
  EXPECT_THAT(refusal_of([&] { read(folder_ / "."); }), HasSubstr("this is a folder, not a configuration file"));
  EXPECT_THAT(refusal_of([&] { read(folder_ / "none"); }), EndsWith("there is no such file"));
  std::ofstream(folder_ / "binary") << std::string("a: 1\n\0b", 7);
  EXPECT_THAT(refusal_of([&] { read(folder_ / "binary"); }),
              EndsWith("this file holds binary data (byte 5 is 0) and is not a configuration file"));
  std::ofstream(folder_ / "huge");
  fs::resize_file(folder_ / "huge", 10'000'000'000);  // without a block on the disk
  EXPECT_THAT(refusal_of([&] { read(folder_ / "huge"); }),
              EndsWith("this file of 10.0 GB is not a configuration file, which has 1.00 kB at most"));
}

}  // namespace
}  // namespace trireme
