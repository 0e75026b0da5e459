#include "trireme/api/data_parallel.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "trireme/api/module_layer.h"
#include "trireme/base/error.h"
#include "trireme/memory/counter.h"
#include "trireme/parallel/replica_check.h"

namespace trireme {

namespace {

// All parameters must be of one type and on one device: they lie in the same buffers.
Precision precision_of(const ParameterList& parameters) {
  if (parameters.empty()) refuse("DataParallel: the module has no parameters that learn");
  const auto& first = *parameters.front();
  for (const auto& parameter : parameters) {
    if (parameter->value.scalar_type() != first.value.scalar_type() ||
        parameter->value.device() != first.value.device()) {
      refuse("DataParallel: {} is {} on {}, but {} is {} on {}: move the whole module to one type and device first",
             first.name, c10::toString(first.value.scalar_type()), first.value.device().str(), parameter->name,
             c10::toString(parameter->value.scalar_type()), parameter->value.device().str());
    }
  }
  switch (first.value.scalar_type()) {
    case at::kDouble: return Precision::fp64;
    case at::kFloat: return Precision::fp32;
    case at::kBFloat16: return Precision::bf16;
    default:
      refuse("DataParallel: parameters of type {} are not trained; use float, double or bfloat16",
             c10::toString(first.value.scalar_type()));
  }
}

// Whether a parameter's value is this piece of a bucket.
bool lies_in(const at::Tensor& value, const at::Tensor& piece) {
  return value.data_ptr() == piece.data_ptr() && value.sizes() == piece.sizes() && value.strides() == piece.strides() &&
         value.scalar_type() == piece.scalar_type();
}

// Backward passes that run now, of all DataParallels of a rank. Autograd runs hooks on threads of its own where a module
// is on a card, so this is no thread's own number; nor the process's, where ranks are threads of it.
class RunningPasses {
 public:
  void add(const World& rank, int count) {
    const std::lock_guard lock(mutex_);
    if ((by_rank_[&rank] += count) == 0) by_rank_.erase(&rank);
  }
  bool any(const World& rank) {
    const std::lock_guard lock(mutex_);
    return by_rank_.count(&rank) > 0;
  }

 private:
  std::mutex mutex_;
  std::map<const World*, int> by_rank_;
};

RunningPasses running_passes;

class BackwardPass {
 public:
  BackwardPass(const World& rank, bool& running) : rank_(rank), running_(running) {
    running_ = true;
    running_passes.add(rank_, 1);
  }
  ~BackwardPass() {
    running_passes.add(rank_, -1);
    running_ = false;
  }

 private:
  const World& rank_;
  bool& running_;
};

}  // namespace

ReplicatedModule::ReplicatedModule(std::shared_ptr<torch::nn::Module> module, World& world,
                                   const DataParallelOptions& options)
    : module_(std::move(module)),
      world_(world),
      bucket_bytes_(options.bucket_mb * 1e6),
      buffers_(adopt_buffers(*module_, "")),
      executor_(world.recorder(), clock_, &world.communicator()),
      totals_(at::zeros({1}, at::kDouble)),
      schedule_(make_schedule(ScheduleKind::gpipe, {}, {})) {
  adopt_module();
  if (world.size() > 1 && options.batch_norm == BatchNormKind::synchronised)
    replicas_ = [this](const at::Tensor& given) { return gather_replicas(given); };
  // Ranks that are threads live and die together: there is nobody to watch.
  if (world.size() > 1 && !world.ranks_are_threads()) {
    WatchdogOptions watch;
    watch.heartbeat_s = options.heartbeat_s;
    watch.stop_s = options.stop_s;
    watch.look_outside = [this, heartbeat_s = options.heartbeat_s](bool stepping) {
      return world_.silent_hosts(stepping ? heartbeat_s + 2 : 0);
    };
    watchdog_.emplace(world.board(), world.local_rank(), world.rank(), watch);
  }
}

// Makes the store and all that stands on it, anew where there is one; then what they held goes over.
void ReplicatedModule::adopt_module() {
  Adoption adoption;
  adoption.also = [&](const at::Tensor& value) { return is_adopted(value); };  // frozen later: it keeps its place
  adoption.takes = [this](const Parameter& parameter) { return takes_gradient(parameter); };
  auto parameters = adopt_parameters(*module_, "", adoption);
  const auto precision = precision_of(parameters);
  check_same_parameters(parameters, world_.communicator());
  const auto device = parameters.front()->value.device();
  auto gradients = gradients_ ? std::make_unique<ShownGradients>(parameters, *gradients_)
                              : std::make_unique<ShownGradients>(parameters);
  std::set<std::string> in_place;  // parameters whose values the store before holds
  if (store_) {
    for (const auto& bucket : store_->buckets()) {
      for (const auto& stored : bucket.parameters) {
        if (lies_in(stored.parameter->value, ParameterStore::piece(bucket.values, stored)))
          in_place.insert(stored.parameter->name);
      }
    }
  }
  sync_.reset();  // it refers to the store
  const auto before = std::exchange(store_, nullptr);
  parameters_ = std::move(parameters);
  adopted_.clear();
  for (const auto& parameter : parameters_) adopted_.insert(parameter->value.unsafeGetTensorImpl());
  gradients_ = std::move(gradients);
  store_ = std::make_unique<ParameterStore>(parameters_, precision, device, bucket_bytes_, [&](int64_t bytes, int) {
    return world_.communicator().allocate(bytes, everybody, device);
  });
  if (before) move_state(*before, in_place);
  graph_ = {};
  sync_ = std::make_unique<GradientSync>(SyncConfig{}, *store_, world_.communicator(), GradientSync::Groups{},
                                         executor_, totals_);
  sends_.clear();
  for (size_t b = 0; b < store_->buckets().size(); ++b) {
    const auto send = [this, b] { sync_->send(b); };
    sends_.push_back(graph_.add(TaskKind::reduce, static_cast<int32_t>(b), Lane::wire, send, {}, /*extra_signals=*/1));
  }
  begun_ = false;
}

// The optimizer's state of parameters that an earlier store had; it begins with zeros for the others. So do their
// masters, unless the module holds other values now.
void ReplicatedModule::move_state(const ParameterStore& from, const std::set<std::string>& in_place) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, std::pair<const Bucket*, const StoredParameter*>> places;
  for (const auto& bucket : from.buckets()) {
    for (const auto& stored : bucket.parameters) places[stored.parameter->name] = {&bucket, &stored};
  }
  for (auto& bucket : store_->buckets()) {
    const OwnerScope scope(Owner::optimizer);
    for (const auto& [name, state] : from.buckets().front().state) bucket.state[name] = at::zeros_like(bucket.master);
    for (const auto& stored : bucket.parameters) {
      const auto place = places.find(stored.parameter->name);
      if (place == places.end()) continue;
      const auto& [before, at] = place->second;
      const auto copy = [&](const at::Tensor& to, const at::Tensor& buffer) {
        ParameterStore::piece(to, stored).copy_(ParameterStore::piece(buffer, *at));
      };
      for (const auto& [name, state] : before->state) copy(bucket.state.at(name), state);
      if (in_place.contains(stored.parameter->name)) copy(bucket.master, before->master);
    }
    ParameterStore::publish(bucket);
  }
}

void ReplicatedModule::follow_module() {
  const auto like = [](const at::Tensor& value, const at::Tensor& piece) {
    return value.sizes() == piece.sizes() && value.strides() == piece.strides() &&
           value.options().type_equal(piece.options()) && value.device() == piece.device();
  };
  const c10::NoGradGuard no_grad;
  size_t found = 0;
  bool anew = false;
  for (const auto& value : module_->parameters()) {
    const bool known = is_adopted(value);
    found += known;
    anew = anew || (!known && value.requires_grad());
  }
  anew = anew || found != parameters_.size();
  for (auto& bucket : store_->buckets()) {
    for (const auto& stored : bucket.parameters) {
      auto& value = stored.parameter->value;
      const auto piece = ParameterStore::piece(bucket.values, stored);
      if (lies_in(value, piece)) continue;
      if (!like(value, piece)) {
        anew = true;
        continue;
      }
      // Other values, such as those that torch::load() has read, come into the bucket.
      ParameterStore::piece(bucket.master, stored).copy_(value);
      piece.copy_(value);
      value.set_data(piece);
    }
  }
  if (anew) adopt_module();
}

// Gradients that come by no backward pass of ours are one rank's own.
bool ReplicatedModule::takes_gradient(const Parameter& parameter) const {
  if (in_backward_) return true;
  if (running_passes.any(world_)) return false;  // through this module, of another one's loss: as torch does it
  refuse(
      "the gradient of {} was computed by loss.backward(): call backward(loss) of the DataParallel that wraps the "
      "module, which averages the gradients over the ranks",
      parameter.name);
}

ReplicatedModule::~ReplicatedModule() {
  // A rank that ends by an error is missed by the others, and they say so.
  if (watchdog_ && std::uncaught_exceptions() == 0) watchdog_->stand_down();
}

SharedStatistics ReplicatedModule::shared_statistics() const {
  return SharedStatistics(replicas_ && module_->is_training() ? &replicas_ : nullptr);
}

at::Tensor ReplicatedModule::gather_replicas(const at::Tensor& given) {
  auto& communicator = world_.communicator();
  auto all = at::empty({world_.size(), given.numel()}, given.options());
  communicator.now([&] { return communicator.all_gather(given.contiguous(), all.view({-1}), "batch statistics"); });
  return all;
}

double ReplicatedModule::weight_or_even(std::optional<double> weight) const {
  return weight.value_or(1.0 / world_.size());
}

// A parameter has a gradient when any rank has one: one that no rank's loss depends on is left as torch leaves it.
void ReplicatedModule::agree_on_gradients() {
  auto& has = gradients_->has();
  if (world_.size() == 1) return;
  auto ranks = at::empty({static_cast<int64_t>(has.size())}, at::kDouble);
  auto* count = ranks.mutable_data_ptr<double>();
  std::copy(has.begin(), has.end(), count);
  auto& communicator = world_.communicator();
  communicator.now([&] { return communicator.all_reduce(ranks, ReduceOp::sum, "gradients that there are"); });
  for (size_t i = 0; i < has.size(); ++i) has[i] = count[i] > 0;
}

void ReplicatedModule::run_backward(const at::Tensor& loss, double weight, bool last) {
  const PassScope scope(Owner::working);
  if (loss.numel() != 1)
    refuse("backward wants a loss of one element, not of shape [{}]", fmt::join(loss.sizes(), ", "));
  if (broken_)
    refuse(
        "an earlier backward pass ended with an error, and ranks do not know which gradients the others have sent: "
        "end the job, and let it go on from its newest checkpoint");
  follow_module();
  if (!begun_) {
    world_.recorder().set_step(steps_ + 1);
    executor_.begin(graph_, *schedule_);
    begun_ = true;
  }
  // What was averaged before is the same on all ranks: each adds its part of that to the sum.
  gradients_->hide(/*first=*/!accumulates_, accumulates_ ? 1.0 : 1.0 / world_.size());
  if (last) {
    sync_->begin_step(steps_ + 1, 1, sends_);
  } else {
    sync_->hold();
  }
  GradientSync::begin_pass(parameters_);
  try {
    const BackwardPass running(world_, in_backward_);
    loss.backward(at::full_like(loss, weight));
  } catch (...) {
    begun_ = accumulates_ = false;
    broken_ = world_.size() > 1 && sync_->sent() > 0;
    throw;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->gradient.writes > 0) gradients_->has()[i] = 1;
  }
  sync_->end_pass(parameters_);
  accumulates_ = !last;
  if (!last) return gradients_->show(/*complete=*/false);
  sync_->check_complete();
  agree_on_gradients();
  executor_.finish();
  begun_ = false;
  ++steps_;
  gradients_->show(/*complete=*/true);
}

void ReplicatedModule::accumulate(const at::Tensor& loss, std::optional<double> weight) {
  run_backward(loss, weight_or_even(weight), /*last=*/false);
}

void ReplicatedModule::backward(const at::Tensor& loss, std::optional<double> weight) {
  run_backward(loss, weight_or_even(weight), /*last=*/true);
}

double ReplicatedModule::mean(double value, std::optional<double> weight) {
  const auto sum = at::full({1}, value * weight_or_even(weight), at::kDouble);
  auto& communicator = world_.communicator();
  communicator.now([&] { return communicator.all_reduce(sum, ReduceOp::sum, "mean"); });
  return sum.item<double>();
}

}  // namespace trireme
