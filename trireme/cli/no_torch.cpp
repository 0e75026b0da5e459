// Takes the place of the commands that need LibTorch where the program is built without it, as on a head node.
#include "trireme/base/error.h"
#include "trireme/cli/command.h"

namespace trireme {

namespace {

void add_missing(CLI::App& program, Action& chosen, const std::string& name, const std::string& sentence) {
  auto* command = program.add_subcommand(name, sentence + " (not in this build)");
  command->prefix_command();  // whatever was asked, the answer is the same
  command->callback([name, &chosen] {
    chosen = [name]() -> int {
      refuse("trireme {} needs LibTorch, and this program was built without it: run make build on a machine with torch",
             name);
    };
  });
}

}  // namespace

void add_train(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "train", "Train a model on one or more ranks");
}
void add_generate(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "generate", "Sample text from a trained model");
}
void add_convert(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "convert", "Turn a checkpoint into Hugging Face's layout, or back");
}
void add_analyze(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "analyze", "Say what a model costs, layer by layer, without running it");
}
void add_bench(CLI::App& program, Action& chosen) { add_missing(program, chosen, "bench", "Measure beside others"); }
void add_doctor(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "doctor", "Say what this machine has and what is missing");
}

}  // namespace trireme
