#include "trireme/parallel/codec_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/codec/codec.h"
#include "trireme/spec/codec_cost.h"

namespace trireme {

namespace {

// The largest of all ranks': the slowest makes the others wait.
void agree(World& world, at::Tensor numbers) {
  auto& communicator = world.communicator();
  communicator.now([&] { return communicator.all_reduce(numbers, ReduceOp::max, "agree on speeds"); });
}

// Seconds a byte, the median of a few times.
template <class Work>
double timed(int64_t bytes, const Work& work) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const int64_t begun = monotonic_ns();
    work();
    seconds.push_back(static_cast<double>(monotonic_ns() - begun) * 1e-9);
  }
  return median(seconds) / static_cast<double>(bytes);
}

CodecSpeed measure(CodecConfig config, CodecKind kind, World& world) {
  config.kind = kind;
  const auto codec = make_codec(config);
  constexpr int64_t count = 1 << 19;
  const auto bytes = count * static_cast<int64_t>(sizeof(float));
  const auto values = at::sin(at::arange(count, at::kFloat) * 1.7), residual = at::zeros({count}, at::kFloat);
  const auto message = at::empty({codec->most_bytes(count)}, at::kByte);
  int64_t length = 0;
  const auto speeds = at::empty({2}, at::kDouble);
  speeds[0] =
      timed(bytes, [&] { length = codec->encode(values, config.feedback ? residual : at::Tensor(), Key{1}, message); });
  speeds[1] = timed(bytes, [&] { codec->add(message.narrow(0, 0, length), values); });
  agree(world, speeds);
  return {kind, static_cast<double>(length) / static_cast<double>(bytes), speeds[0].item<double>(),
          speeds[1].item<double>()};
}

LinkCost measure_between(World& world) {
  const std::vector<int64_t> lengths{4096, 256 << 10, 1 << 20};
  auto times = time_messages(world.mpi(), /*inside_host=*/false, lengths);
  const auto all = at::tensor(times, at::kDouble);
  agree(world, all);
  std::vector<std::pair<int64_t, double>> messages;
  for (size_t i = 0; i < lengths.size(); ++i)
    messages.emplace_back(lengths[i], all[static_cast<int64_t>(i)].item<double>());
  auto link = fit_link(messages);
  link.gamma_s_per_byte = Links{}.between.gamma_s_per_byte;
  return link;
}

// Inside a host memory is the link: as fast as a plain sum of so many bytes is.
LinkCost measure_inside(World& world, int64_t bytes) {
  auto& communicator = world.communicator();
  const auto tensor = communicator.allocate(bytes).view(at::kFloat);
  const auto speed = at::empty({1}, at::kDouble);
  speed[0] =
      timed(1, [&] { communicator.now([&] { return communicator.all_reduce(tensor, ReduceOp::sum, "time a sum"); }); });
  agree(world, speed);
  return {0, speed.item<double>() / least_all_reduce_bytes(world.size(), bytes), 0};
}

}  // namespace

CodecConfig chosen_codec(CodecConfig codec, const std::string& links, World& world, int64_t bytes) {
  if (codec.kind != CodecKind::automatic) return codec;
  codec.kind = CodecKind::none;
  if (world.size() == 1) return codec;
  at::NoGradGuard no_grad;
  SumPlace place;
  // As many ranks on every host as on the fullest, with as few cores each as the poorest rank has.
  const auto local = at::tensor({static_cast<double>(world.local_size()), 1 / world.own_cores()}, at::kDouble);
  agree(world, local);
  place.local = static_cast<int>(local[0].item<double>());
  place.hosts = (world.size() + place.local - 1) / place.local;
  place.cores = 1 / local[1].item<double>();
  if (place.hosts == 1) {
    place.links.inside = measure_inside(world, std::max<int64_t>(64, bytes / 64 * 64));
  } else if (!links.empty()) {
    place.links = read_links(links);
  } else {
    place.links.between = measure_between(world);
  }
  std::vector<CodecSpeed> speeds;
  for (const auto kind : {CodecKind::bf16, CodecKind::int8, CodecKind::int4})
    speeds.push_back(measure(codec, kind, world));
  const auto choice = choose_codec(place, bytes, speeds);
  if (world.rank() == 0) log::info("{}", choice.brief(speeds));
  codec.kind = choice.kind;
  return codec;
}

}  // namespace trireme
