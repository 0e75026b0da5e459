#include <iostream>
#include <memory>
#include <vector>

#include "trireme/base/paths.h"
#include "trireme/cli/command.h"
#include "trireme/bench/codec.h"
#include "trireme/bench/comm.h"
#include "trireme/bench/pipeline.h"
#include "trireme/bench/sync.h"
#include "trireme/bench/torch_peer.h"
#include "trireme/bench/train.h"

namespace trireme {

namespace {

void print(const BenchLine& line, bool json) { std::cout << (json ? line.json().dump() : line.brief()) << std::endl; }

void add_pipeline(CLI::App& command, Action& chosen) {
  auto options = std::make_shared<PipelineBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto* pipeline = command.add_subcommand("pipeline", "A GPT in stages beside torch.distributed.pipelining");
  pipeline->footer("Example: trireme bench pipeline --case small --plot pictures");
  pipeline->add_option("--case", options->only, "large, small, jitter, schedules, bubble or engine (default: all)")
      ->check(CLI::IsMember({"large", "small", "jitter", "schedules", "bubble", "engine"}));
  pipeline->add_option("--stages", options->stages, "Stages, one rank each")
      ->capture_default_str()
      ->check(CLI::Range(1, 10));
  pipeline->add_option("--repeats", options->repeats, "Alternating runs of each side")
      ->capture_default_str()
      ->check(at_least(1));
  pipeline->add_option("--steps", options->steps, "Steps of each run")
      ->capture_default_str()
      ->check(CLI::Range(5, 10000));
  pipeline
      ->add_option("--context", options->context,
                   "Tokens of a sequence (default: 128; in the small case 64, 128 and 256)")
      ->check(CLI::Range(8, 4096));
  pipeline->add_option("--threads", options->threads, "Threads of each of our stages; 0: its share of the cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  pipeline
      ->add_option("--peer-threads", options->peer_threads, "Threads of each of the peer's stages; 0: find the best")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  pipeline->add_option("--jitter-ms", options->jitter_ms, "Longest delay of a message in the case with delays")
      ->capture_default_str();
  takes_path(pipeline->add_option("--plot", options->plot, "Also draw each schedule's timeline into this folder"));
  pipeline->add_option("--python", options->python, "The Python that holds torch")->capture_default_str();
  pipeline->add_flag("--json", *json, "Print one JSON object a line");
  pipeline->callback([options, json, &chosen] {
    chosen = [options, json] {
      if (!options->plot.empty()) check_output_folder(options->plot);
      run_pipeline_bench(*options, [&](const BenchLine& line) { print(line, *json); });
      return 0;
    };
  });
}

void add_comm(CLI::App& command, Action& chosen) {
  auto options = std::make_shared<CommBenchOptions>();
  auto json = std::make_shared<bool>(false), worker = std::make_shared<bool>(false);
  auto* comm = command.add_subcommand("comm", "Collectives beside Open MPI's own and Gloo's");
  comm->footer("Example: trireme bench comm --ranks 2 --case all_reduce bucket --kib 64 1024");
  comm->add_option("--case", options->collectives,
                   "all_reduce, bucket (an all-reduce of memory that the ranks share), reduce_scatter, all_gather, "
                   "all_to_all, overlap, checking, message (default: the first five)")
      ->check(CLI::IsMember(CommBenchOptions::known()));
  comm->add_option("--ranks", options->ranks, "Numbers of ranks (default: 2 and 4)")->check(CLI::Range(2, 64));
  comm->add_option("--kib", options->kib,
                   "Sizes of the whole tensor in KiB (default: 1 to 65536, on cards 1024 to 262144)")
      ->check(CLI::Range(1.0, 1048576.0));
  comm->add_option("--device", options->device, "cpu, or cuda: on cards, beside the same through the host")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  comm->add_option("--transport", options->transport, "automatic (shared memory inside a host), or mpi")
      ->capture_default_str()
      ->check(CLI::IsMember({"automatic", "mpi"}));
  comm->add_option("--bind", options->bind, "none: ranks run on any core; core: each is bound to one of its own")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "core"}));
  takes_path(comm->add_option("--tune,--measure-links", options->tune,
                              "Measure the links instead and keep them in this file; also under mpirun on several "
                              "hosts (by its second name, as mpirun takes --tune for its own)"));
  comm->add_option("--repeats", options->repeats, "Alternating runs of each side")
      ->capture_default_str()
      ->check(at_least(1));
  comm->add_option("--python", options->python, "The Python that holds torch")->capture_default_str();
  comm->add_flag("--json", *json, "Print one JSON object a line");
  comm->add_flag("--worker", *worker, "Be one of the ranks that measure")->group("");
  comm->callback([options, json, worker, &chosen] {
    chosen = [options, json, worker] {
      if (*worker || !options->tune.empty()) return measure_comm(*options, command_line());
      const auto say = [&](const std::string& text) {
        if (!*json) std::cout << text << std::endl;
      };
      run_comm_bench(*options, [&](const BenchLine& line) { print(line, *json); }, say);
      return 0;
    };
  });
}

void add_codec(CLI::App& command, Action& chosen) {
  auto options = std::make_shared<CodecBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto* codec = command.add_subcommand(
      "codec", "Codecs on real gradients beside torch's operations, SZ3, zfp and PowerSGD, on one core");
  codec->footer("Example: trireme bench codec --case int8 top_k --mib 16");
  codec->add_option("--case", options->cases, "Some of the codecs (default: all)")
      ->check(CLI::IsMember(CodecBenchOptions::known()));
  codec->add_option("--device", options->device, "cpu, or cuda: those that work on cards")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  codec->add_option("--repeats", options->repeats, "Alternating runs of each side")
      ->capture_default_str()
      ->check(at_least(1));
  codec->add_option("--mib", options->mib, "Size of the gradients in MiB")
      ->capture_default_str()
      ->check(CLI::Range(0.25, 16384.0));
  codec->add_option("--python", options->python, "The Python that holds torch, pysz (SZ3) and zfpy (zfp)")
      ->capture_default_str();
  codec->add_flag("--json", *json, "Print one JSON object a line");
  codec->callback([options, json, &chosen] {
    chosen = [options, json] {
      run_codec_bench(*options, [&](const BenchLine& line) { print(line, *json); });
      return 0;
    };
  });
}

void add_sync(CLI::App& command, Action& chosen) {
  auto options = std::make_shared<SyncBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto* sync = command.add_subcommand("sync", "Ways to keep replicas together: accuracy, and speed with a slow rank");
  sync->footer("Example: trireme bench sync --kind allreduce eager --part straggler --plot sync.html");
  sync->add_option("--kind", options->kinds, "Values of sync.kind (default: all)")
      ->check(CLI::IsMember(SyncBenchOptions::known()));
  sync->add_option("--part", options->part, "accuracy, straggler or all")
      ->capture_default_str()
      ->check(CLI::IsMember({"accuracy", "straggler", "all"}));
  sync->add_option("--ranks", options->ranks, "Ranks")->capture_default_str()->check(CLI::Range(2, 64));
  sync->add_option("--seeds", options->seeds, "Runs of each kind that are judged by accuracy")
      ->capture_default_str()
      ->check(at_least(1));
  sync->add_option("--steps", options->steps, "Steps of each of these, of 128 images")
      ->capture_default_str()
      ->check(CLI::Range(100, 1000000));
  takes_path(sync->add_option("--data", options->data, "Folder of images (default: Debian's dataset-fashion-mnist)"));
  sync->add_option("--delay-ms", options->delay_ms, "How late the slow rank is")->capture_default_str();
  takes_path(sync->add_option("--plot", options->plot, "Also draw loss against time into this page"));
  sync->add_flag("--json", *json, "Print one JSON object a line");
  sync->callback([options, json, &chosen] {
    chosen = [options, json] {
      if (!options->plot.empty()) prepare_output_file("--plot", options->plot);
      run_sync_bench(*options, [&](const SyncBenchLine& line) {
        std::cout << (*json ? line.json().dump() : line.brief()) << std::endl;
      });
      return 0;
    };
  });
}

}  // namespace

void add_bench(CLI::App& program, Action& chosen) {
  auto* command = program.add_subcommand("bench", "Measure beside peers, where they are installed");
  command->require_subcommand(1);
  command->footer("Example: trireme bench train --json");

  auto options = std::make_shared<TrainBenchOptions>();
  auto json = std::make_shared<bool>(false);
  auto* train = command->add_subcommand("train", "Step times beside PyTorch: same weights, batches and losses");
  train->footer("Example: trireme bench train --case mlp --ranks 2 --repeats 5");
  train->add_option("--case", options->cases,
                    "mlp, gpt, llama, resnet18 (default: these four), vgg11; on a card llama-162m, resnet50; tiny, to "
                    "try the benchmark itself; shared, shared-tiny: one rank beside other work");
  train->add_option("--ranks", options->ranks, "Numbers of ranks (default: 1 and 2)");
  train
      ->add_option("--peers", options->peers,
                   "eager and compile (torch.compile), with the matrix library that torch installs, and eager-fastest "
                   "and compile-fastest, with the fastest that the machine has (default: all that differ here)")
      ->check(CLI::IsMember(TorchPeer::known()));
  train->add_option("--repeats", options->repeats, "Alternating runs of each side")
      ->capture_default_str()
      ->check(at_least(1));
  train->add_option("--steps", options->steps, "Steps of each run")->capture_default_str()->check(CLI::Range(5, 10000));
  train->add_option("--seconds", options->seconds, "For which each run of the case shared is watched")
      ->capture_default_str()
      ->check(CLI::Range(0.5, 3600.0));
  train
      ->add_option("--hosts", options->hosts,
                   "Network namespaces of this machine that the ranks are spread over (needs root)")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  train->add_option("--rate", options->rate, "Of the links between these hosts, as tc writes it")
      ->capture_default_str();
  train
      ->add_option("--codec", options->codec,
                   "Our sync.codec, such as auto; with one, beside DDP with its fp16 and PowerSGD hooks too")
      ->capture_default_str();
  train->add_option("--set", options->settings,
                    "Settings of ours, such as parallel.pipe=2; with some, beside a plain all-reduce of ours too");
  train->add_option("--python", options->python, "The Python that holds torch")->capture_default_str();
  train->add_flag("--json", *json, "Print one JSON object a line");
  train->callback([options, json, &chosen] {
    chosen = [options, json] {
      std::vector<BenchLine> lines;
      run_train_bench(*options, [&](const BenchLine& line) {
        print(line, *json);
        if (!line.peer_name.empty()) lines.push_back(line);
      });
      if (!*json && !lines.empty()) std::cout << "\n" << markdown_table(lines);
      return 0;
    };
  });
  add_pipeline(*command, chosen);
  add_sync(*command, chosen);
  add_comm(*command, chosen);
  add_codec(*command, chosen);
  add_bench_fleet(*command, chosen);
}

}  // namespace trireme
