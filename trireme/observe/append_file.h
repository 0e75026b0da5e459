// A file that grows by whole records: a process killed at any moment leaves whole ones but for the last, and a full
// disk costs the records that did not fit and one warning, never the run.
#pragma once

#include <filesystem>
#include <string_view>

#include "trireme/base/files.h"

namespace trireme {

class AppendFile {
 public:
  explicit AppendFile(const std::filesystem::path& path) : file_(path, File::Mode::append) {}

  // True when the whole record is in the file; false when nothing of it is.
  bool append(std::string_view record);

 private:
  File file_;
  bool warned_ = false;
};

}  // namespace trireme
