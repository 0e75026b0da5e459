// trireme: trains large neural networks on few, mixed, shared accelerators.
#include <malloc.h>

#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/cli/command.h"

namespace trireme {

namespace {
std::vector<std::string> words;
}

const std::vector<std::string>& command_line() { return words; }

namespace {

int run(int argc, char** argv) {
  words.assign(argv + 1, argv + argc);
  CLI::App program("Trains large neural networks on few, mixed, shared accelerators.", "trireme");
  program.require_subcommand(1);
  program.footer("Each command has --help with an example. Exit status: 0 done, 1 it failed, 2 you asked wrongly, 128+N stopped by signal N.");
  program.set_version_flag("--version", "trireme " TRIREME_VERSION);
  Action chosen;
  add_train(program, chosen);
  add_generate(program, chosen);
  add_bench(program, chosen);
  add_doctor(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  }
  return chosen();
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  // Keep freed memory: activations of one step are those of the next, and fresh pages cost a fault each.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  try {
    return trireme::run(argc, argv);
  } catch (const trireme::Error& error) {
    trireme::log::error("{}", error.what());
    return error.exit_status();
  } catch (const std::exception& error) {
    trireme::log::error("{}", error.what());
    return 1;
  }
}
