// trireme: trains large neural networks on few, mixed, shared accelerators.
#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include <fmt/ranges.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/paths.h"
#include "trireme/cli/command.h"
#include "trireme/device/foreign_error.h"
#include "trireme/version.h"

namespace trireme {

namespace {
std::vector<std::string> words;
}

const std::vector<std::string>& command_line() { return words; }

CLI::Validator at_least(double lowest) {
  const auto check = [lowest](const std::string& text) {
    double number = 0;
    const bool good = CLI::detail::lexical_cast(text, number) && number >= lowest;
    return good ? std::string() : fmt::format("must be a number of at least {}, not {}", lowest, text);
  };
  return CLI::Validator(check, fmt::format(">={}", lowest), "at least");
}

CLI::Option* takes_path(CLI::Option* option) {
  const auto expand = [](std::string& text) {
    if (text.empty()) return std::string("names nothing");
    text = expand_home(text).string();
    return std::string();
  };
  return option->transform(CLI::Validator(expand, "", "path"));
}

Words sorted(const std::vector<std::string>& words) {
  Words found;
  for (const auto& word : words) {
    if (word.find('=') != std::string::npos) {
      found.overrides.push_back(word);
    } else {
      found.paths.push_back(expand_home(word));
    }
  }
  return found;
}

void check_configurations(const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) {
    if (!std::filesystem::exists(file)) refuse_missing(file, "configuration file (settings are written key=value)");
  }
}

namespace {

// One line that says what was wrong and whose --help tells more.
int refuse_command_line(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* app = &program;
  std::string name = program.get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  std::string what = error.what();
  const bool wants_command = dynamic_cast<const CLI::RequiredError*>(&error) && app->get_require_subcommand_min() > 0;
  if (wants_command) {
    std::vector<std::string> commands;
    for (const auto* command : app->get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back(command->get_name());
    const auto unknown = app->remaining();
    what = fmt::format("the commands of {} are {}", name, fmt::join(commands, ", "));
    if (!unknown.empty()) {
      const auto meant = nearest(unknown.front(), commands);
      what = meant.empty() ? fmt::format("unknown command {}; {}", unknown.front(), what)
                           : fmt::format("unknown command {}, did you mean {}?", unknown.front(), meant);
    }
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    const auto unknown = app->remaining();
    std::vector<std::string> valid;
    for (const auto* option : app->get_options()) valid.push_back(option->get_name());
    const auto meant = unknown.empty() ? "" : nearest(unknown.front(), valid);
    what = fmt::format("unknown option {}{}", fmt::join(unknown, " "),
                       meant.empty() ? "" : fmt::format(", did you mean {}?", meant));
  }
  log::error("{} ({} --help tells more)", what, name);
  return 2;
}

int run(int argc, char** argv) {
  words.assign(argv + 1, argv + argc);
  CLI::App program("Trains large neural networks on few, mixed, shared accelerators.", "trireme");
  program.require_subcommand(1);
  program.footer(
      "Each command has --help with an example. Exit status: 0 done, 1 it failed, 2 you asked wrongly, 128+N stopped "
      "by signal N.");
  program.set_version_flag("--version", "trireme " TRIREME_VERSION);
  Action chosen;
  add_train(program, chosen);
  add_generate(program, chosen);
  add_sweep(program, chosen);
  add_convert(program, chosen);
  add_evaluate(program, chosen);
  add_average(program, chosen);
  add_analyze(program, chosen);
  add_bench(program, chosen);
  add_fleet(program, chosen);
  add_doctor(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? program.exit(error) : refuse_command_line(program, error);
  }
  return chosen();
}

// Results go to the standard output: one that could not be written there is a failure. Not so where nobody reads them:
// the output is closed, or a pipe whose reader has had enough.
void check_output_arrived() {
  const bool arrived = static_cast<bool>(std::cout.flush()) && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  struct stat status{};
  if (arrived || ::fstat(STDOUT_FILENO, &status) != 0 || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return;
  fail("the result could not be written to the standard output: is its disk full?");
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  // Keep freed memory: activations of one step are those of the next, and fresh pages cost a fault each.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  ::signal(SIGXFSZ, SIG_IGN);  // a file over `ulimit -f` is an error like a full disk, not the end
  int status = 1;
  try {
    status = trireme::run(argc, argv);
    trireme::check_output_arrived();
  } catch (...) {
    const auto [error, out_of_memory] = trireme::explain(std::current_exception());
    trireme::log::error("{}{}", error.what(),
                        out_of_memory ? ". Free some memory, or take a machine that has more" : "");
    status = error.exit_status();
  }
  trireme::log::end(status);
  return status;
}
