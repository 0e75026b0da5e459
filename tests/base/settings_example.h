// A small struct with settings of every type, for the tests of Settings.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"
#include "trireme/base/settings.h"

namespace trireme {

enum class Color { red, green, blue };

struct Example {
  int64_t layers = 4;
  double dropout = 0;
  double lr = 1e-3;
  bool nesterov = false;
  Color color = Color::green;
  std::string path = "data/text.txt";
  std::string run_dir;

  bool operator==(const Example&) const = default;
};

inline Settings describe(Example& example) {
  Settings settings;
  settings.section("model", "The network.");
  settings.add("model.layers", example.layers, "Blocks of the network.").unit("blocks").at_least(1);
  settings.add("model.dropout", example.dropout, "Share that is dropped.").at_least(0).below(1);
  settings.add_choice("model.color", example.color,
                      {{"red", Color::red}, {"green", Color::green}, {"blue", Color::blue}}, "Paint.");
  settings.section("optimizer", "The update.");
  settings.add("optimizer.lr", example.lr, "Learning rate.").above(0).at_most(10);
  settings.add("optimizer.nesterov", example.nesterov, "Look ahead.");
  settings.section("data", "The input.");
  settings.add("data.path", example.path, "The file.");
  settings.add("run_dir", example.run_dir, "Folder of the run.");
  return settings;
}

// What the settings of an Example after this text are.
inline Example read(const std::string& yaml) {
  Example example;
  Settings settings = describe(example);
  settings.read_text(yaml, "a.yaml");
  settings.check();
  return example;
}

// The message with which `action` is refused; a failure that is not the user's fault does not count.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 2) << error.what();
    return error.what();
  }
  return "(accepted)";
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(fmt::format("{}trireme_settings_test.{}.yaml", process_folder(), getpid())) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace trireme
