// Takes the place of the commands that need LibTorch where the program is built without it, as on a head node.
#include "trireme/base/error.h"
#include "trireme/cli/command.h"
#include "trireme/device/foreign_error.h"
#include "trireme/train/vocabulary.h"

namespace trireme {

Explained explain(const std::exception_ptr& thrown) { return explain_standard(thrown); }

int64_t vocabulary_of(const RunConfig& config) {
  if (reads_tokens(config.model.kind) && config.model.vocab == 0) {
    refuse("model.vocab is open, and this program was built without LibTorch, which reads the data: set it, such as "
           "model.vocab=50257");
  }
  return config.model.vocab;
}

namespace {

void add_missing(CLI::App& above, Action& chosen, const std::string& name, const std::string& sentence) {
  auto* command = above.add_subcommand(name, sentence + " (not in this build)");
  command->prefix_command();  // whatever was asked, the answer is the same
  const auto before = above.get_parent() ? above.get_parent()->get_name() + " " : std::string();
  command->callback([whole = before + above.get_name() + " " + name, &chosen] {
    chosen = [whole]() -> int {
      refuse("{} needs LibTorch, and this program was built without it: run make build on a machine with torch", whole);
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
void add_evaluate(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "evaluate", "Evaluate checkpoints on held-out samples, each and as an ensemble");
}
void add_average(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "average", "Make one checkpoint of the mean of several");
}
void add_sweep(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "sweep", "Train with many settings, several runs at once, and find the best");
}
void add_bench(CLI::App& program, Action& chosen) {
  auto* command = program.add_subcommand("bench", "Measure beside peers, where they are installed");
  command->require_subcommand(1);
  add_missing(*command, chosen, "train", "Step times beside PyTorch");
  add_missing(*command, chosen, "pipeline", "A GPT in stages beside torch.distributed.pipelining");
  add_missing(*command, chosen, "comm", "Collectives beside Open MPI's and Gloo's");
  add_missing(*command, chosen, "codec", "Codecs on real gradients, one core beside torch's own operations");
  add_bench_fleet(*command, chosen);
}
void add_doctor(CLI::App& program, Action& chosen) {
  add_missing(program, chosen, "doctor", "Say what this machine has and what is missing");
}

}  // namespace trireme
