// The subcommands. Each file adds one to the program and holds no logic of its own.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

// What the chosen subcommand does; its exit status is the program's.
using Action = std::function<int()>;

void add_train(CLI::App& program, Action& chosen);
void add_generate(CLI::App& program, Action& chosen);
void add_convert(CLI::App& program, Action& chosen);
void add_average(CLI::App& program, Action& chosen);
void add_evaluate(CLI::App& program, Action& chosen);
void add_sweep(CLI::App& program, Action& chosen);
void add_analyze(CLI::App& program, Action& chosen);
void add_bench(CLI::App& program, Action& chosen);
void add_bench_fleet(CLI::App& bench, Action& chosen);  // a part of bench that needs no tensors
void add_fleet(CLI::App& program, Action& chosen);
void add_doctor(CLI::App& program, Action& chosen);

// Accepts numbers from `lowest` on. CLI11's own checks answer a wrong one with the largest double in three hundred
// digits.
CLI::Validator at_least(double lowest);

// Lets an option name a file or folder: a leading ~ is the home folder.
CLI::Option* takes_path(CLI::Option* option);

// What stands on a command line without options: configuration files (or other paths), and key=value overrides.
struct Words {
  std::vector<std::filesystem::path> paths;
  std::vector<std::string> overrides;
};
Words sorted(const std::vector<std::string>& words);

// Refuses configuration files that are not there.
void check_configurations(const std::vector<std::filesystem::path>& files);

// The words of the command line, as a launcher repeats them for each rank.
const std::vector<std::string>& command_line();

}  // namespace trireme
