#include "trireme/bench/cards.h"

#include <ATen/ATen.h>

#include <condition_variable>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/comm/postbox.h"
#include "trireme/device/device.h"
#include "trireme/bench/rank.h"

namespace trireme {

namespace {

// Two ranks that send each other a tensor in turn.
class Pair {
 public:
  Pair(World& world, at::Device device, int64_t bytes, bool on_cards)
      : rank_(world.rank()), partner_(rank_ ^ 1), device_(device) {
    auto& communicator = world.communicator();
    communicator.try_with({.cards = on_cards});
    MailPeers peers;
    if (partner_ < world.size()) peers.to = peers.from = {partner_};
    peers.message_bytes = bytes;
    peers.device = device;
    postbox_ = std::make_unique<Postbox>(communicator.open_mail(peers), world.recorder(),
                                         PostboxOptions{.rank = rank_, .device = device, .settled = true});
    communicator.try_with({});
    box_ = postbox_->open(partner_, tag, [this](PendingTensor message, std::exception_ptr error) {
      std::lock_guard lock(mutex_);
      arrived_ = std::move(message);
      error_ = error;
      here_ = true;
      came_.notify_one();
    });
    if (partner_ >= world.size()) partner_ = -1;
  }

  // There and back; gives what came.
  at::Tensor exchange(const at::Tensor& tensor) {
    if (partner_ < 0) return tensor;
    if (rank_ < partner_) postbox_->send(partner_, tag, tensor);
    auto came = receive();
    if (rank_ > partner_) postbox_->send(partner_, tag, tensor);
    return came;
  }

 private:
  static constexpr MessageTag tag{1, 0, 0};

  at::Tensor receive() {
    postbox_->expect(box_);
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return here_; });
    here_ = false;
    if (error_) std::rethrow_exception(error_);
    arrived_.ready.wait();
    return arrived_.take();
  }

  const int rank_;
  int partner_;
  const at::Device device_;
  std::mutex mutex_;
  std::condition_variable came_;
  PendingTensor arrived_;
  std::exception_ptr error_;
  bool here_ = false;
  std::unique_ptr<Postbox> postbox_;
  Postbox::Box box_ = 0;
};

class CardRank {
 public:
  explicit CardRank(World& world)
      : world_(world),
        communicator_(world.communicator()),
        device_(choose_device(true, world.local_rank())),
        timer_(world) {
    shared_ = communicator_.allocate(64 << 20, everybody, device_);
    if (!communicator_.reaches(device_)) fail("the cards of this host cannot reach each other's memory");
  }

  void check() {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kChar, at::kLong}) {
      for (const int64_t count : {1, 77, 20'000, 1'000'003}) {
        const auto given = values(world_.rank(), dtype, count * world_.size());
        for (const auto& name : {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"}) {
          for (const bool shared : {false, true}) compare(name, given, shared);
        }
      }
    }
  }

  void measure(const std::string& name, int64_t bytes, nlohmann::ordered_json& into) {
    const int64_t count = bytes / 4 / world_.size() * world_.size();
    if (name == "message") return message(count, into);
    const bool bucket = name == "bucket";
    const auto collective = bucket ? std::string("all_reduce") : name;
    auto tensor = at::zeros({count}, device_);
    if (bucket) tensor = communicator_.allocate(count * 4, everybody, device_).view(at::kFloat);
    const auto output = at::empty_like(tensor);
    const auto [ours, host] = timer_.time(
        {[&] { call(collective, tensor, output, true); }, [&] { call(collective, tensor, output, false); }});
    into = {{"ours_us", ours * 1e6}, {"host_us", host * 1e6}};
  }

 private:
  // What a rank gives: different for every rank and in every place.
  at::Tensor values(int rank, at::ScalarType dtype, int64_t count) const {
    const auto numbers = at::arange(count, at::TensorOptions().device(device_).dtype(at::kDouble));
    return numbers.add(1 + 0.37 * rank).mul(0.6180339887498949).frac().mul(20).sub(10).to(dtype);
  }

  void call(const std::string& name, const at::Tensor& tensor, const at::Tensor& output, bool on_cards) {
    communicator_.try_with({.cards = on_cards});
    communicator_.now([&] {
      if (name == "all_reduce") return communicator_.all_reduce(tensor, ReduceOp::sum, "bench");
      if (name == "reduce_scatter") return communicator_.reduce_scatter(tensor, ReduceOp::sum, "bench");
      if (name == "all_to_all") return communicator_.all_to_all(tensor, output, "bench");
      const int64_t part = tensor.numel() / world_.size();
      return communicator_.all_gather(tensor.narrow(0, 0, part), output, "bench");
    });
  }

  // What a call leaves: in its own part of the tensor, in all of it, or in the output.
  at::Tensor result(const std::string& name, const at::Tensor& tensor, const at::Tensor& output) const {
    if (name == "all_reduce") return tensor;
    if (name != "reduce_scatter") return output;
    const auto parts = even_parts(tensor.numel(), world_.size(), static_cast<int64_t>(tensor.element_size()));
    const auto r = static_cast<size_t>(world_.rank());
    return tensor.narrow(0, parts[r], parts[r + 1] - parts[r]);
  }

  void compare(const std::string& name, const at::Tensor& given, bool shared) {
    std::vector<at::Tensor> results;
    for (const bool on_cards : {true, false}) {
      const auto place = shared ? shared_.narrow(0, 0, static_cast<int64_t>(given.nbytes())).view(given.scalar_type())
                                : at::empty_like(given);
      place.copy_(given);
      const auto output = at::zeros_like(given);
      call(name, place, output, on_cards);
      results.push_back(result(name, place, output).clone());
    }
    if (!at::equal(results[0], results[1]))
      fail("{} of {} {} on the cards differs from the same through the host", name, given.numel(),
           c10::toString(given.scalar_type()));
  }

  void message(int64_t count, nlohmann::ordered_json& into) {
    Pair direct(world_, device_, count * 4, true), staged(world_, device_, count * 4, false);
    const auto tensor = values(world_.rank(), at::kFloat, count);
    const int partner = world_.rank() ^ 1;
    for (auto* pair : {&direct, &staged}) {
      const auto came = pair->exchange(tensor);
      if (partner < world_.size() && !at::equal(came, values(partner, at::kFloat, count)))
        fail("a message came with other values than were sent");
    }
    const auto [ours, host] = timer_.time({[&] { direct.exchange(tensor); }, [&] { staged.exchange(tensor); }});
    // One way is half of there and back.
    into = {{"ours_us", ours / 2 * 1e6}, {"host_us", host / 2 * 1e6}};
  }

  World& world_;
  Communicator& communicator_;
  const at::Device device_;
  BenchRank timer_;
  at::Tensor shared_;
};

}  // namespace

nlohmann::ordered_json measure_cards(const CommBenchOptions& options, World& world) {
  CardRank rank(world);
  rank.check();
  nlohmann::ordered_json found;
  for (const auto& name : options.collectives) {
    for (const int64_t bytes : options.bytes()) rank.measure(name, bytes, found[name][std::to_string(bytes)]);
  }
  return found;
}

}  // namespace trireme
