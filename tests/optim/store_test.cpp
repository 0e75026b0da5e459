#include "trireme/optim/store.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/close.h"
#include "trireme/memory/counter.h"
#include "trireme/nn/model.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

std::unique_ptr<Model> small_gpt() {
  auto model = build_model({.kind = ModelKind::gpt, .layers = 2, .width = 12, .heads = 3, .context = 7}, 33);
  model->initialize(1);
  return model;
}

at::Tensor zero_bytes(int64_t bytes, int) { return at::zeros({bytes}, at::kByte); }

ParameterStore store_of(const Model& model, Precision precision, double bucket_bytes) {
  return {model.parameters(), precision, at::kCPU, bucket_bytes, zero_bytes};
}

// Plans count bytes without torch, which knows best.
TEST(Precisions, HaveTheBytesThatPlansCount) {
  for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    EXPECT_EQ(value_bytes(precision), static_cast<int64_t>(at::elementSize(value_type(precision))));
    EXPECT_EQ(master_bytes(precision), static_cast<int64_t>(at::elementSize(master_type(precision))));
  }
}

TEST(ParameterStore, FillsBucketsInTheOrderOfReadyGradients) {
  const auto model = small_gpt();
  const auto parameters = model->parameters();
  for (const double bytes : {1.0, 3000.0, 10'000.0, 1e9}) {
    const auto store = store_of(*model, Precision::fp64, bytes);
    // Buckets hold runs of the parameters in reverse; inside one the order may differ.
    std::map<const Parameter*, size_t> bucket_of;
    for (size_t b = 0; b < store.buckets().size(); ++b) {
      for (const auto& stored : store.buckets()[b].parameters) {
        EXPECT_TRUE(bucket_of.emplace(stored.parameter.get(), b).second) << stored.parameter->name;
      }
    }
    ASSERT_EQ(bucket_of.size(), parameters.size());
    size_t last = 0;
    for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
      const size_t bucket = bucket_of.at(it->get());
      EXPECT_GE(bucket, last) << (*it)->name;
      last = bucket;
    }
  }
}

TEST(ParameterStore, BoundsItsBuckets) {
  const auto model = small_gpt();
  EXPECT_EQ(store_of(*model, Precision::fp64, 1).buckets().size(), model->parameters().size());
  EXPECT_EQ(store_of(*model, Precision::fp64, 1e9).buckets().size(), 1u);
  for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    const double bytes = 6000;
    const auto store = store_of(*model, precision, bytes);
    EXPECT_GT(store.buckets().size(), 2u);
    for (size_t b = 0; b < store.buckets().size(); ++b) {
      const auto& bucket = store.buckets()[b];
      // Only a parameter that is larger than a bucket may be in a larger one, alone.
      EXPECT_TRUE(static_cast<double>(bucket.gradients.nbytes()) <= bytes || bucket.parameters.size() == 1);
      // A bucket ends where the next parameter would not have fitted: none is split needlessly.
      if (b + 1 < store.buckets().size()) {
        const auto& next = store.buckets()[b + 1];
        EXPECT_GT(static_cast<double>(bucket.gradients.nbytes() + next.gradients.nbytes()), bytes);
      }
    }
  }
}

TEST(ParameterStore, AlignsParametersAndPutsTheDecayingFirst) {
  const auto model = small_gpt();
  for (const double bytes : {1.0, 5000.0, 1e9}) {
    const auto store = store_of(*model, Precision::fp32, bytes);
    for (const auto& bucket : store.buckets()) {
      int64_t next = 0;
      for (const auto& stored : bucket.parameters) {
        EXPECT_EQ(stored.offset % 16, 0);
        EXPECT_EQ(stored.offset, next);  // no gap but the rest of a line
        EXPECT_EQ(stored.parameter->decays(), stored.offset < bucket.decaying) << stored.parameter->name;
        next = (stored.offset + stored.parameter->value.numel() + 15) / 16 * 16;
      }
      EXPECT_EQ(bucket.elements, next);
      EXPECT_EQ(bucket.master.numel(), bucket.elements);
      EXPECT_EQ(bucket.gradients.numel(), bucket.elements);
    }
  }
}

TEST(ParameterStore, KeepsValuesAndMakesThemViews) {
  c10::NoGradGuard no_grad;
  const auto model = small_gpt(), same = small_gpt();
  auto store = store_of(*model, Precision::fp64, 5000);
  const auto before = same->parameters(), after = model->parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i]->value, after[i]->value)) << before[i]->name;
    EXPECT_TRUE(after[i]->value.requires_grad());
  }
  for (auto& bucket : store.buckets()) {
    bucket.master.fill_(3);
    bucket.gradients.fill_(4);
    for (const auto& stored : bucket.parameters) {
      const auto& parameter = *stored.parameter;
      const auto threes = at::full(parameter.value.sizes(), 3.0, at::kDouble);
      EXPECT_TRUE(at::equal(parameter.value, threes)) << parameter.name;
      EXPECT_TRUE(at::equal(parameter.gradient.view, threes + 1)) << parameter.name;
      EXPECT_EQ(parameter.value.data_ptr(), ParameterStore::piece(bucket.master, stored).data_ptr());
    }
  }
}

// The forward and backward pass work on the buckets themselves, the tied table with its two uses included.
TEST(ParameterStore, ReceivesTheGradientsOfABackwardPass) {
  const auto model = small_gpt(), plain = small_gpt();
  const auto ids = at::arange(14, at::kLong).view({2, 7}), targets = at::arange(3, 17, at::kLong).view({2, 7});
  auto store = store_of(*model, Precision::fp64, 4000), other = store_of(*plain, Precision::fp64, 1e9);
  Pass pass;
  for (int step = 0; step < 2; ++step) {  // the second step overwrites the first
    store.begin_step();
    other.begin_step();
    cross_entropy_sum(model->forward(ids, pass), targets).backward();
    cross_entropy_sum(plain->forward(ids, pass), targets).backward();
  }
  const auto found = model->parameters(), expected = plain->parameters();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i]->gradient.view, expected[i]->gradient.view)) << found[i]->name;
    EXPECT_GT(found[i]->gradient.view.abs().max().item<double>(), 0) << found[i]->name;
  }
  // Finite differences of one element of the tied table.
  c10::NoGradGuard no_grad;
  const auto loss_at = [&](double shift) {
    found[0]->value[5][3] += shift;
    const double loss = cross_entropy_sum(model->forward(ids, pass), targets).item<double>();
    found[0]->value[5][3] -= shift;
    return loss;
  };
  EXPECT_NEAR((loss_at(1e-5) - loss_at(-1e-5)) / 2e-5, found[0]->gradient.view[5][3].item<double>(), 1e-6);
}

TEST(ParameterStore, KeepsFp32MastersBesideBf16Values) {
  c10::NoGradGuard no_grad;
  const auto model = small_gpt(), plain = small_gpt();
  auto store = store_of(*model, Precision::bf16, 5000);
  const auto expected = plain->parameters(), found = model->parameters();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i]->value.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(found[i]->value, expected[i]->value.to(at::kFloat).to(at::kBFloat16))) << found[i]->name;
    EXPECT_EQ(found[i]->gradient.view.scalar_type(), at::kFloat);
  }
  auto& bucket = store.buckets()[0];
  EXPECT_EQ(bucket.master.scalar_type(), at::kFloat);
  const auto& stored = bucket.parameters[0];
  const auto before = stored.parameter->value.clone();
  bucket.master.add_(1.0 / 3);
  EXPECT_TRUE(at::equal(stored.parameter->value, before));  // values follow only when they are published
  ParameterStore::publish(bucket);
  EXPECT_TRUE(at::equal(stored.parameter->value, ParameterStore::piece(bucket.master, stored).to(at::kBFloat16)));
}

TEST(ParameterStore, TakesGradientMemoryFromItsOwner) {
  const auto model = small_gpt();
  std::vector<at::Tensor> given;
  const ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 5000, [&](int64_t bytes, int) {
    given.push_back(zero_bytes(bytes, 0));
    return given.back();
  });
  ASSERT_EQ(given.size(), store.buckets().size());
  for (size_t b = 0; b < given.size(); ++b) {
    EXPECT_EQ(given[b].data_ptr(), store.buckets()[b].gradients.data_ptr());
    EXPECT_EQ(given[b].numel(), store.buckets()[b].elements * 4);
  }
}

// Counted where it is allocated: what the store holds belongs to the owners that it says.
TEST(ParameterStore, ItsBytesBelongToTheirOwners) {
  count_memory();
  const auto held_by = [](Precision precision, int64_t* elements) {
    Ledger ledger;
    const OwnerScope scope(ledger, Owner::other);
    const auto model = small_gpt();
    auto store = store_of(*model, precision, 5000);
    for (auto& bucket : store.buckets()) {
      if (elements) *elements += bucket.elements;
      make_optimizer({.kind = OptimizerKind::adamw})->prepare(bucket);
    }
    EXPECT_EQ(ledger.held(Memory::host, Owner::other), 0) << "values that the model no longer has";
    std::map<std::string, int64_t> bytes;
    for (const auto owner : {Owner::parameters, Owner::masters, Owner::gradients, Owner::optimizer})
      bytes[name(owner)] = ledger.held(Memory::host, owner);
    return bytes;
  };
  int64_t elements = 0;
  const auto fp32 = held_by(Precision::fp32, &elements);
  EXPECT_EQ(fp32,
            (std::map<std::string, int64_t>{{"parameters", 4 * elements},
                                            {"masters", 0},
                                            {"gradients", 4 * elements},
                                            {"optimizer", 8 * elements}}));
  EXPECT_EQ(held_by(Precision::bf16, nullptr),
            (std::map<std::string, int64_t>{{"parameters", 2 * elements},
                                            {"masters", 4 * elements},
                                            {"gradients", 4 * elements},
                                            {"optimizer", 8 * elements}}));
}

}  // namespace
}  // namespace trireme
