#include "trireme/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    auto name = process_folder() + "trireme-files-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~FilesTest() override { fs::remove_all(folder_); }

  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The error that `action` throws.
template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Error::Kind::failed, "");
}

// While this lives, no file of the process may grow beyond `bytes`: writes then fail as they do on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(FilesTest, WritesAndReadsBack) {
  const auto path = folder_ / "numbers";
  File file(path, File::Mode::create);
  file.write_all(bytes_of("01234"));
  file.write_all({});
  file.write_all(bytes_of("56789"));
  file.sync();
  EXPECT_EQ(file.size(), 10U);

  std::array<std::byte, 4> middle;
  File(path, File::Mode::read).pread_all(middle, 3);
  EXPECT_EQ(text_of(middle), "3456");
}

TEST_F(FilesTest, CreateEmptiesAndAppendKeeps) {
  const auto path = folder_ / "log";
  write_atomically(path, "old");
  File(path, File::Mode::append).write_all(bytes_of(" and new"));
  EXPECT_EQ(read_text(path), "old and new");
  File(path, File::Mode::create).write_all(bytes_of("x"));
  EXPECT_EQ(read_text(path), "x");
}

TEST_F(FilesTest, MovedFileKeepsItsDescriptor) {
  File first(folder_ / "first", File::Mode::create);
  File second(folder_ / "second", File::Mode::create);
  second = std::move(first);
  File third(std::move(second));
  third.write_all(bytes_of("moved"));
  EXPECT_EQ(third.path(), folder_ / "first");
  EXPECT_EQ(read_text(folder_ / "first"), "moved");
}

TEST_F(FilesTest, ShortReadNamesExpectedAndFound) {
  const auto path = folder_ / "short";
  write_atomically(path, "0123456789");
  std::array<std::byte, 8> out;
  const auto error = error_of([&] { File(path, File::Mode::read).pread_all(out, 4); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("expected 8 bytes at offset 4, found 6")));
}

TEST_F(FilesTest, MissingFileIsNamed) {
  const auto path = folder_ / "nothing";
  const auto error = error_of([&] { File(path, File::Mode::read); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory")));
}

TEST_F(FilesTest, FullDiskSaysSo) {
  File file("/dev/full", File::Mode::append);
  const auto error = error_of([&] { file.write_all(bytes_of("x")); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/full"), HasSubstr("disk full"), HasSubstr("free some space")));
  EXPECT_EQ(error.exit_status(), 1);
}

TEST_F(FilesTest, MapsAWholeFile) {
  const auto path = folder_ / "mapped";
  write_atomically(path, "mapped bytes");
  MappedFile first(path);
  MappedFile second(std::move(first));
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(text_of(second.bytes()), "mapped bytes");
}

TEST_F(FilesTest, RefusesToMapWhatIsNoFile) {
  const auto missing = error_of([&] { MappedFile(folder_ / "nothing"); });
  EXPECT_THAT(missing.what(), AllOf(HasSubstr((folder_ / "nothing").string()), HasSubstr("no such file")));
  EXPECT_EQ(missing.kind(), Error::Kind::refused);

  write_atomically(folder_ / "empty", "");
  EXPECT_THAT(error_of([&] { MappedFile(folder_ / "empty"); }).what(), HasSubstr("the file is empty"));
  EXPECT_THAT(error_of([&] { MappedFile{folder_}; }).what(), HasSubstr("not a plain file"));
}

TEST_F(FilesTest, AtomicWriteReplacesAndLeavesNoTemporary) {
  const auto path = folder_ / "state";
  write_atomically(path, "first");
  write_atomically(path, "second");
  EXPECT_EQ(read_text(path), "second");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FilesTest, FailedAtomicWriteLeavesTheOldFile) {
  const auto path = folder_ / "state";
  write_atomically(path, "old");
  const std::string large(1 << 16, 'x');
  const auto error = error_of([&] {
    const FileSizeLimit limit(4096);
    write_atomically(path, large);
  });
  EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("File too large")));
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FilesTest, AtomicWriteOntoAFolderLeavesNoTemporary) {
  fs::create_directory(folder_ / "taken");
  EXPECT_THROW(write_atomically(folder_ / "taken", "x"), Error);
  EXPECT_EQ(entries(), 1U);
}

TEST_F(FilesTest, RenamesFoldersAndFiles) {
  fs::create_directories(folder_ / "step-3.partial");
  fs::create_directories(folder_ / "kept");
  write_atomically(folder_ / "step-3.partial" / "a", "a");
  rename_durably(folder_ / "step-3.partial/", folder_ / "kept" / "step-3/");
  rename_durably(folder_ / "kept" / "step-3" / "a", folder_ / "b");
  EXPECT_EQ(read_text(folder_ / "b"), "a");
  EXPECT_FALSE(fs::exists(folder_ / "step-3.partial"));
}

TEST_F(FilesTest, FailedRenameNamesBoth) {
  const auto error = error_of([&] { rename_durably(folder_ / "from", folder_ / "to"); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr((folder_ / "from").string()), HasSubstr((folder_ / "to").string())));
  EXPECT_THAT(error_of([&] { sync_folder(folder_ / "from"); }).what(), HasSubstr((folder_ / "from").string()));
}

TEST(ChecksumTest, IsXxh3InPiecesAsInWhole) {
  EXPECT_EQ(hex(checksum({})), "2d06800538d394c2");  // the published value for no bytes
  EXPECT_EQ(hex(0xab), "00000000000000ab");

  const std::string text(1000, 'q');
  Checksum pieces;
  EXPECT_EQ(pieces.value(), checksum({}));
  for (size_t begin = 0; begin < text.size(); begin += 77) pieces.update(bytes_of(text.substr(begin, 77)));
  EXPECT_EQ(pieces.value(), checksum(bytes_of(text)));
  pieces.update(bytes_of("more"));
  EXPECT_EQ(pieces.value(), checksum(bytes_of(text + "more")));
}

TEST(RateLimitTest, NeverFasterThanAsked) {
  const auto start = std::chrono::steady_clock::now();
  RateLimit limit(1'000'000);
  {
    const std::jthread other([&] { limit.take(20'000); });
    for (int i = 0; i < 4; ++i) limit.take(20'000);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST(RateLimitTest, ZeroIsNoLimit) { RateLimit(0).take(uint64_t{1} << 60); }

TEST_F(FilesTest, MakesFoldersAndSaysWhyNot) {
  make_folder(folder_ / "new" / "inner");
  make_folder(folder_ / "new" / "inner");
  EXPECT_TRUE(fs::is_directory(folder_ / "new" / "inner"));
  std::ofstream(folder_ / "file") << "x";
  try {
    make_folder(folder_ / "file" / "inner");
    FAIL() << "there is a file in the way";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "cannot make the folder " + (folder_ / "file" / "inner").string() + ": Not a directory");
  }
}

TEST_F(FilesTest, RemovesATreeAndWhatItLinksToStays) {
  const auto tree = folder_ / "tree", outside = folder_ / "outside";
  fs::create_directories(tree / "a" / "b");
  std::ofstream(tree / "a" / "b" / "deep") << "x";
  std::ofstream(tree / "top") << "x";
  fs::create_directories(outside);
  std::ofstream(outside / "kept") << "x";
  fs::create_directory_symlink(outside, tree / "link");
  remove_tree(tree);
  EXPECT_FALSE(fs::exists(fs::symlink_status(tree)));
  EXPECT_TRUE(fs::exists(outside / "kept"));
  remove_tree(outside / "kept");
  EXPECT_FALSE(fs::exists(outside / "kept"));
  remove_tree(folder_ / "nothing there");
}

}  // namespace
}  // namespace trireme
