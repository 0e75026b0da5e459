#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "trireme/cli/command.h"
#include "trireme/train/convert.h"

namespace trireme {

void add_convert(CLI::App& program, Action& chosen) {
  struct Options {
    std::string from, to, layout;
    ConvertOptions convert;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = program.add_subcommand("convert", "Turn a checkpoint into Hugging Face's layout, or back");
  command->footer("Example: trireme convert runs/gpt-1 models/mine --max-shard-mb 2000");
  takes_path(command->add_option("source", options->from,
                                 "A run's folder (its newest checkpoint), a checkpoint, or Hugging Face's"))
      ->required();
  takes_path(command->add_option("target", options->to, "The folder to make"))->required();
  command->add_option("--to", options->layout, "hf or trireme (default: the one that the source has not)")
      ->check(CLI::IsMember({"hf", "trireme"}));
  command
      ->add_option("--max-shard-mb", options->convert.max_shard_mb, "Largest file of weights, in Hugging Face's layout")
      ->capture_default_str()
      ->check(at_least(0.001));
  command->add_flag("--adapters-only", options->convert.adapters_only,
                    "Write the adapters of a LoRA run by themselves, as peft reads them, instead of merging them");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &chosen] {
    chosen = [options] {
      if (!options->layout.empty()) {
        options->convert.layout =
            options->layout == "hf" ? SourceModel::Layout::hugging_face : SourceModel::Layout::trireme;
      }
      const auto result = convert(options->from, options->to, options->convert);
      std::cout << (options->json ? result.json().dump() + "\n" : result.brief()) << std::flush;
      return 0;
    };
  });
}

}  // namespace trireme
