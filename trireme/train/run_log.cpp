#include "trireme/train/run_log.h"

#include <unistd.h>

#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/base/log.h"
#include "trireme/base/words.h"
#include "trireme/comm/launch.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

// A word as a shell takes it.
std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?[]{}#~`!") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

// The words by which this process was started.
std::string command_line() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string word; std::getline(stream, word, '\0');) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

}  // namespace

void open_run_log(World& world, const fs::path& run_dir) {
  const auto host = host_name(), first_host = world.from_first(host, "share the host");
  // Lines that several hosts append to one file may overwrite each other, so other hosts have files of their own, made
  // when they have something to say.
  const auto path = run_dir / (host == first_host ? std::string("log.txt") : fmt::format("log-{}.txt", host));
  if (world.rank() == 0 && look_around().ours) world.board()->announce_log(fs::absolute(path).string());
  log::set_file(path);
  if (world.rank() != 0) return;
  log::note(fmt::format("trireme {}: {}, the first is process {} on host {}", TRIREME_VERSION,
                        counted(world.size(), "rank"), ::getpid(), host));
  log::note(fmt::format("command line: {}", command_line()));
  log::note(fmt::format("in folder: {}", fs::current_path().string()));
}

void end_run_log(const World& world, int exit_status) {
  if (world.rank() == 0 && !look_around().ours) log::end(exit_status);
}

}  // namespace trireme
