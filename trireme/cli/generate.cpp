#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "trireme/base/paths.h"
#include "trireme/cli/command.h"
#include "trireme/train/generate.h"

namespace trireme {

void add_generate(CLI::App& program, Action& chosen) {
  struct Options {
    std::string from;
    GenerateOptions generate;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  auto* command = program.add_subcommand("generate", "Sample text from a trained model");
  command->footer("Example: trireme generate runs/gpt-1 --prompt 'In the beginning' --tokens 200");
  takes_path(command->add_option("run", options->from,
                                 "A run's folder (its newest checkpoint), a checkpoint, or Hugging Face's"))
      ->required();
  command->add_option("--prompt", options->generate.prompt, "Text to go on from");
  command->add_option("--ids", options->generate.ids, "Tokens to go on from, by number: 464,2057")->delimiter(',');
  command->add_option("--tokens", options->generate.tokens, "How many tokens to add")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_option("--temperature", options->generate.temperature, "0 takes the likeliest token")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_option("--top-k", options->generate.top_k, "Consider only the k likeliest tokens; 0 = all")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_option("--seed", options->generate.seed, "Which sample")->capture_default_str();
  takes_path(command->add_option("--logits", options->generate.logits,
                                 "Also write the model's answers to the prompt into this file (safetensors)"));
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &chosen] {
    chosen = [options] {
      const auto& wanted = options->generate;
      if (!wanted.logits.empty()) prepare_output_file("--logits", wanted.logits);
      const auto result = generate(options->from, wanted);
      const bool text = !result.text.empty();
      if (options->json) {
        const nlohmann::ordered_json json{
            {"checkpoint", result.checkpoint.string()},
            {"prompt", wanted.prompt},
            {"tokens", result.tokens},
            {"text", text ? nlohmann::ordered_json(result.text) : nlohmann::ordered_json()}};
        std::cout << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
      } else if (text) {
        std::cout << wanted.prompt << result.text << std::endl;
      } else {
        for (auto token : result.tokens) std::cout << token << ' ';
        std::cout << std::endl;
      }
      return 0;
    };
  });
}

}  // namespace trireme
