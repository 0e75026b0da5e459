// Files that tests write for themselves, gone when the test ends.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trireme-data-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) fail_errno(pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

template <class Value>
void append(const std::filesystem::path& path, std::span<const Value> values) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  ASSERT_TRUE(file.good()) << path;
}

template <class Value>
void append(const std::filesystem::path& path, const std::vector<Value>& values) {
  append(path, std::span<const Value>(values));
}

// llm.c's 256 words in front of the tokens.
inline void append_header(const std::filesystem::path& path, int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  append(path, header);
}

// The message of the refusal that `action` ends in; a failed expectation when it ends otherwise.
inline std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::refused) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

// A folder of this process, with a slash at the end, for files that a test names itself: others may run the same test.
inline std::string process_folder() {
  static const TemporaryFolder folder;
  return (folder / "").string();
}

}  // namespace trireme
