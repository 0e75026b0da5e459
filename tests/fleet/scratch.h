// Files that a test writes, gone when it ends, and what is wrong with them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::fleet {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-fleet-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~Scratch() { remove_tree(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

 private:
  std::filesystem::path folder_;
};

// The message of the error, without the folder of the scratch; "" when there was none.
inline std::string complaint(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    std::string text = error.what();
    const auto begin = text.find((std::filesystem::temp_directory_path() / "trireme-fleet-").string());
    if (begin != std::string::npos) text.erase(begin, text.find('/', begin + 20) + 1 - begin);
    return text;
  }
  return "";
}

}  // namespace trireme::fleet
