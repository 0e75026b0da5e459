#include "trireme/observe/append_file.h"

#include <unistd.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme {

bool AppendFile::append(std::string_view record) {
  std::optional<uint64_t> before;
  try {
    before = file_.size();
    file_.write_all(bytes_of(record));
    return true;
  } catch (const Error& error) {
    if (!warned_) log::warn("{}; the run goes on, and what does not fit is left out", error.what());
    warned_ = true;
  }
  // A disk that fills up in the middle of a record would leave the next one glued to its first half. Where this fails
  // too (a device, a lost server) there is nothing left to mend.
  [[maybe_unused]] const bool mended = before && ftruncate(file_.descriptor(), static_cast<off_t>(*before)) == 0;
  return false;
}

}  // namespace trireme
